// What a fuzz target says when its parser took the whole input as well formed:
//
//   extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
//     if (ReadFooter({data, size}).ok()) weightcast::fuzz::Accepted(data, size);
//     return 0;
//   }
//
// The replay fails a corpus of which nothing is accepted: it would only ever test the first check
// of its parser. The planted twin of a libFuzzer binary (NAME_planted) overflows a copy of an
// accepted input, which proves that fuzzing reaches the end of the parser and that an overflow is
// seen there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weightcast::fuzz {

void Accepted(const uint8_t* data, size_t size);

}  // namespace weightcast::fuzz
