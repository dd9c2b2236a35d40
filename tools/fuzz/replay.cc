// Runs a fuzz target over files and directories, for builds without libFuzzer: the corpus is an
// ordinary test of every compiler. Fails if there is no input, or if the target accepts none.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

size_t g_accepted = 0;

void Replay(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const std::string content = std::move(text).str();
  // Exactly sized on the heap, so that the address sanitizer sees a read past the end.
  const auto bytes = std::make_unique<uint8_t[]>(content.size());
  if (!content.empty()) std::memcpy(bytes.get(), content.data(), content.size());
  LLVMFuzzerTestOneInput(bytes.get(), content.size());
}

}  // namespace

void weightcast::fuzz::Accepted(const uint8_t*, size_t) { ++g_accepted; }

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  for (const auto& file : files) {
    // Before the run, so that the last line names the input that crashed.
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);
    Replay(file);
  }
  std::printf("%zu inputs, %zu accepted\n", files.size(), g_accepted);
  return g_accepted > 0 ? 0 : 1;
}
