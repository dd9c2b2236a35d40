"""vLLM in this process: its settings must be there before it is imported."""

import importlib.util
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

os.environ.update({
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOGGING_LEVEL": "ERROR",
})
if importlib.util.find_spec("weightcast") is None:  # not installed: what the build made
    built = str(ROOT / "build" / "python")
    sys.path.insert(0, built)
    os.environ["PYTHONPATH"] = os.pathsep.join([built, *filter(None, [os.environ.get("PYTHONPATH")])])
