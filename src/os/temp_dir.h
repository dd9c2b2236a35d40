// A directory of its own, removed with all below it at the end. For tests and for scratch space.
#pragma once

#include <array>
#include <string>

#include "os/world.h"

namespace weightcast::os {

class TempDir {
 public:
  // Makes PARENT/weightcast-XXXXXXXXXXXXXXXX. It must succeed.
  explicit TempDir(World& world, const std::string& parent = "/tmp") : fs_(world.fs) {
    std::array<uint8_t, 8> name;
    world.random.Fill(name);
    path_ = JoinPath(parent, "weightcast-" + Hex(name));
    WC_CHECK(fs_.MakeDirectories(path_).ok());
  }
  ~TempDir() { static_cast<void>(fs_.RemoveTree(path_)); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  Fs& fs_;
  std::string path_;
};

}  // namespace weightcast::os
