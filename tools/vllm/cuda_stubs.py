"""Makes stand-ins for the CUDA libraries that `import torch` wants and a run on CPUs never calls.

  VENV/bin/python tools/vllm/cuda_stubs.py

The registry's torch for x86-64 is linked with CUDA; its own CUDA packages are gigabytes. The loader
only wants each library to be there, with every function that torch imports, under the version that
torch was linked with. A stand-in says its function's name and aborts. They lie beside torch's own
libraries, where the loader looks behind the places of the real packages. Needs cc and readelf.
What torch calls while it is loaded, or to see whether there is a device, answers instead: none.
"""

import collections
import ctypes
import importlib.util
import pathlib
import re
import subprocess
import tempfile

# What the compiler's and the C library's packages bring; all else that torch needs is CUDA's.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s))\.so\..*")

# Kernels are registered when torch is loaded; the handle is never looked into. 100: no device.
ANSWERS = {
    "__cudaRegisterFatBinary": "void** NAME(void* fat) { static void* none[1]; (void)fat; return none; }",
    "__cudaRegisterFatBinaryEnd": "void NAME(void** handle) { (void)handle; }",
    "__cudaRegisterFunction": "void NAME(void) {}",
    "__cudaRegisterVar": "void NAME(void) {}",
    "__cudaUnregisterFatBinary": "void NAME(void** handle) { (void)handle; }",
    "cudaGetDeviceCount": "int NAME(int* count) { *count = 0; return 100; }",
    "cudaGetErrorString": 'const char* NAME(int error) { (void)error; return "only stand-ins"; }',
    "cudaGetLastError": "int NAME(void) { return 0; }",
}
ABORTS = 'void NAME(void) { fail("NAME"); }'

# Name and version; one @: imported, or an old version, two: exported.
SYMBOL = re.compile(r"(\w+)(?:@@?([\w.]+))?(?: \(\d+\))?")


def read_elf(flag, file):
    return subprocess.run(["readelf", "-W", flag, file], check=True, capture_output=True,
                          text=True).stdout


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", read_elf("--dynamic", file))


def versions_from(file):
    """{version: the library that it is asked of}"""
    library, out = None, {}
    for line in read_elf("--version-info", file).splitlines():
        if found := re.search(r"Version: \d+  File: (\S+)", line):
            library = found[1]
        elif found := re.search(r"Name: (\S+)  Flags:", line):
            out[found[1]] = library
    return out


def symbols(file):
    """(imported {(name, version or None)}, exported {name})"""
    imported, exported = set(), set()
    for line in read_elf("--dyn-syms", file).splitlines():
        columns = line.split(maxsplit=7)
        if len(columns) < 8 or not columns[1].isalnum() or columns[4] not in ("GLOBAL", "WEAK"):
            continue
        found = SYMBOL.fullmatch(columns[7])
        if not found:
            continue
        if columns[6] != "UND":
            exported.add(found[1])
        elif columns[4] == "GLOBAL":  # the loader lets a weak one be missing
            imported.add((found[1], found[2]))
    return imported, exported


def loaded_with_torch(torch):
    """(library files that `import torch` loads and that are there, names of those that are not)"""
    there = {f.name: f for folder in (torch / "lib", *torch.parent.glob("nvidia/*/lib"))
             for f in folder.glob("*.so*") if not made_here(f)}
    files, missing, todo = {}, set(), ["libtorch_global_deps.so", "libtorch_python.so"]
    while todo:
        name = todo.pop()
        if name in files or SYSTEM.fullmatch(name):
            continue
        if name not in there:
            missing.add(name)
            continue
        files[name] = there[name]
        todo += needed(there[name])
    return list(files.values()), missing


def made_here(file):
    return (file.parent / (file.name + ".stub")).exists()


def wanted(files, missing):
    """{missing library: {(function, version or None)}}, every one with an entry"""
    exported, asked = set(), []
    for file in files:
        imports, exports = symbols(file)
        exported |= exports
        asked.append((file, imports))
    out = {name: set() for name in missing}
    # What the interpreter and the system's C++ offer is often imported without naming them.
    ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)
    process = ctypes.CDLL(None)
    for file, imports in asked:
        libraries = versions_from(file)
        mine = [name for name in sorted(needed(file)) if name in missing]
        # A symbol without a version may come from anywhere: a library that nobody wants a version of.
        plain = [name for name in mine if name not in libraries.values()]
        for name, version in imports:
            library = libraries.get(version)
            if library in missing:
                out[library].add((name, version))
            elif version is None and name not in exported and not hasattr(process, name):
                if not plain:
                    raise SystemExit(f"{file.name}: no library to look for {name} in")
                out[plain[0]].add((name, None))
    return out


def build(library, functions, folder):
    with tempfile.TemporaryDirectory() as scratch:
        source, script = pathlib.Path(scratch, "stub.c"), pathlib.Path(scratch, "stub.map")
        lines = ["#include <stdio.h>", "#include <stdlib.h>",
                 "static void fail(const char* name) {",
                 '  fprintf(stderr, "%s: called, but CUDA is not here: only stand-ins\\n", name);',
                 "  abort();", "}"]
        lines += [ANSWERS.get(name, ABORTS).replace("NAME", name) for name, _ in sorted(functions)]
        source.write_text("\n".join(lines) + "\n")
        by_version = collections.defaultdict(list)
        for name, version in functions:
            if version:
                by_version[version].append(name)
        script.write_text("".join(f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
                                  for version, names in by_version.items()))
        flags = [f"-Wl,--version-script={script}"] if by_version else []
        # The mark first: a file that it does not belong to is worse than a mark without a file.
        (folder / (library + ".stub")).touch()
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{library}", *flags,
                        "-o", folder / library, source], check=True)


def main():
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    files, missing = loaded_with_torch(torch)
    for library, functions in sorted(wanted(files, missing).items()):
        build(library, functions, torch / "lib")
        print(f"{library}: stand-in with {len(functions)} functions")


if __name__ == "__main__":
    main()
