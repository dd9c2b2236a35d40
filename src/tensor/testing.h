// For tests of this floor and of those above it.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "base/bytes.h"
#include "base/json.h"

namespace weightcast::tensor {

// Bytes that look random and are the same for ever: tests/reference/digest.py, pattern().
inline Bytes Pattern(uint64_t seed, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    uint64_t x = (seed << 32) + i + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    bytes[i] = static_cast<uint8_t>(x ^ (x >> 31));
  }
  return bytes;
}

// testdata/golden/<name>; tests run in the project's folder. Stops the test program if missing.
inline Json ReadGolden(const std::string& name) {
  std::ifstream in("testdata/golden/" + name, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return ParseJson(text.str()).value();
}

}  // namespace weightcast::tensor
