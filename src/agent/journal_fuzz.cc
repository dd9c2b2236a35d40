// Any bytes as a journal: parsed or refused, and what is parsed writes only inside its cells.
#include <cstddef>
#include <cstdint>

#include "agent/journal.h"
#include "base/hash.h"
#include "fuzz/accepted.h"
#include "layout/cells.h"

namespace weightcast::agent {
namespace {

std::shared_ptr<const tensor::Inventory> Model() {
  return std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make({{"a", tensor::DType::kBf16, {300}},
                               {"b", tensor::DType::kF32, {64}},
                               {"c", tensor::DType::kU8, {2, 1 << 20}}})
          .value());
}

// Makes the hashes fit, so that the fuzzer gets behind them.
Bytes WithHashes(ByteSpan in) {
  Bytes file(in.begin(), in.end());
  constexpr size_t kHeader = 160;
  constexpr size_t kEntry = 80;
  constexpr size_t kTrailer = 40;
  if (file.size() < kHeader + kTrailer) return file;
  const auto index = LoadLe<uint64_t>(file.data() + file.size() - kTrailer);
  if (index < kHeader || index > file.size() - kTrailer) return file;
  for (size_t at = index; at + kEntry <= file.size() - kTrailer; at += kEntry) {
    const auto offset = LoadLe<uint64_t>(file.data() + at + 16);
    const auto bytes = LoadLe<uint32_t>(file.data() + at + 24);
    if (offset > index || bytes > index - offset) continue;
    StoreLe(file.data() + at + 40, Xxh3(ByteSpan(file).subspan(offset, bytes)));
  }
  Bytes hashed(file.begin(), file.begin() + kHeader);
  hashed.insert(hashed.end(), file.begin() + static_cast<ptrdiff_t>(index), file.end() - 16);
  StoreLe(file.data() + file.size() - 16, Xxh3(hashed));
  return file;
}

// True if it is a journal of the model.
bool Try(ByteSpan file) {
  static const auto inventory = Model();
  const Result<Journal> journal = Journal::Parse(file, inventory);
  if (!journal.ok()) return false;
  for (const JournalEntry& entry : journal->entries()) {
    const auto& spec = (*inventory)[static_cast<size_t>(entry.tensor)];
    Bytes cell(static_cast<size_t>(layout::RunOf(spec.matrix(), entry.cell).bytes));
    for (const bool undo : {false, true}) static_cast<void>(journal->Write(entry, undo, cell));
  }
  return true;
}

}  // namespace
}  // namespace weightcast::agent

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightcast;
  const bool sealed = agent::Try({data, size});
  if (agent::Try(agent::WithHashes({data, size})) || sealed) fuzz::Accepted(data, size);
  return 0;
}
