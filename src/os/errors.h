// What the kernel's error numbers mean to callers; shared by the real and the simulated file system
// so that both answer alike.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace weightcast::os {

// "PATH: <operation>: <reason>", with the code that fs.h promises for it.
Error ErrnoError(const std::string& path, std::string_view operation, int error);

}  // namespace weightcast::os
