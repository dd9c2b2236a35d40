// vLLM's HTTP face, with Weightcast's plugin in its workers: docs/design/engine_protocol.md.
// vLLM opens these routes with VLLM_SERVER_DEV_MODE=1.
#pragma once

#include <memory>
#include <string>

#include "engine/face.h"
#include "os/world.h"

namespace weightcast::engine {

// `url`: http://HOST:PORT. `clock` must outlive the face; it waits between questions in Prepare.
std::unique_ptr<Face> NewVllmFace(const std::string& url, os::Clock& clock);

}  // namespace weightcast::engine
