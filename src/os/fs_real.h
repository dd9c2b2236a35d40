// The kernel's files (Linux).
#pragma once

#include "os/fs.h"

namespace weightcast::os {

// Without state; any thread; lives as long as the process.
Fs& RealFs();

}  // namespace weightcast::os
