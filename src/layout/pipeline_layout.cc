#include "layout/pipeline_layout.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "base/text.h"

namespace weightcast::layout {
namespace {

constexpr char kEmbedding = 'E';
constexpr char kDecoder = 't';
constexpr char kMtp = 'm';
constexpr char kOutput = 'L';
constexpr char kStageEnd = '|';

struct Word {
  std::string_view word;
  char letter;
};
constexpr Word kWords[] = {
    {"embedding", kEmbedding}, {"decoder", kDecoder}, {"mtp", kMtp}, {"loss", kOutput}};

bool IsModule(char c) { return std::ranges::count(kWords, c, &Word::letter) > 0; }

Error Bad(std::string what) {
  return {Code::kInvalidData, "pipeline_model_parallel_layout: " + std::move(what)};
}

// Common to both spellings: a text and a place in it.
struct Reader {
  std::string_view text;
  size_t at = 0;

  bool done() const { return at >= text.size(); }
  char peek() const { return done() ? '\0' : text[at]; }
  bool Take(std::string_view what) {
    if (!text.substr(at).starts_with(what)) return false;
    at += what.size();
    return true;
  }
  Error Expected(const std::string& what) const {
    constexpr size_t kShown = 12;
    return Bad("at " + std::to_string(at) + ": expected " + what + ", found " +
               (done() ? "the end" : Quoted(text.substr(at, kShown))));
  }
};

Status CheckSize(size_t modules) {
  if (static_cast<int64_t>(modules) <= kLayoutModulesMax) return Ok();
  return Bad("more than " + std::to_string(kLayoutModulesMax) + " modules and stages");
}

// ---- letters ----

// After what may be repeated: how often; 1 where nothing is said.
Result<int64_t> ReadTimes(Reader* in) {
  if (!in->Take("*")) return int64_t{1};
  int64_t times = 0;
  const char* begin = in->text.data() + in->at;
  const auto read = std::from_chars(begin, in->text.data() + in->text.size(), times);
  if (read.ec != std::errc() || times < 0 || times > kLayoutModulesMax) {
    return in->Expected("how often, 0.." + std::to_string(kLayoutModulesMax));
  }
  in->at += static_cast<size_t>(read.ptr - begin);
  return times;
}

Status Append(std::string_view part, int64_t times, std::string* modules) {
  // Both factors are at most kLayoutModulesMax.
  WC_TRY(CheckSize(modules->size() + part.size() * static_cast<size_t>(times)));
  for (int64_t i = 0; i < times; ++i) modules->append(part);
  return Ok();
}

// One letter with its repeat, appended to `modules`.
Status ReadLetter(Reader* in, std::string* modules) {
  const char letter = in->peek();
  if (!IsModule(letter) && letter != kStageEnd) return in->Expected("one of E t m L | ( )");
  ++in->at;
  const int64_t times = WC_TRY(ReadTimes(in));
  return Append({&letter, 1}, times, modules);
}

Result<std::string> ReadLetters(std::string_view text) {
  std::string without_commas;
  std::ranges::copy_if(text, std::back_inserter(without_commas), [](char c) { return c != ','; });
  Reader in{without_commas};
  std::string modules;
  while (!in.done()) {
    if (!in.Take("(")) {
      WC_TRY(ReadLetter(&in, &modules));
      continue;
    }
    std::string group;
    while (!in.Take(")")) {
      if (in.peek() == '(') return in.Expected("no group inside a group");
      WC_TRY(ReadLetter(&in, &group));
    }
    if (group.empty()) return in.Expected("something in the group before");
    if (in.peek() != '*') return in.Expected("'*' after a group");
    const int64_t times = WC_TRY(ReadTimes(&in));
    WC_TRY(Append(group, times, &modules));
  }
  return modules;
}

// ---- lists of words ----

void SkipSpace(Reader* in) {
  while (in->peek() == ' ' || in->peek() == '\n' || in->peek() == '\t') ++in->at;
}

// "decoder", 'decoder' or, as Python prints an enumeration's member, <LayerType.decoder: 4>.
Result<char> ReadWord(Reader* in) {
  constexpr std::string_view kMember = "<LayerType.";
  const bool member = in->Take(kMember);
  const char quote = in->peek();
  if (!member && quote != '"' && quote != '\'') return in->Expected("a word in quotes");
  if (!member) ++in->at;
  std::optional<char> letter;
  for (const Word& word : kWords) {
    if (!letter && in->Take(word.word)) letter = word.letter;
  }
  if (!letter) return in->Expected("embedding, decoder, mtp or loss");
  if (!member) {
    if (!in->Take({&quote, 1})) return in->Expected("the word's end");
    return *letter;
  }
  if (!in->Take(": ")) return in->Expected("': '");
  while (in->peek() >= '0' && in->peek() <= '9') ++in->at;
  if (!in->Take(">")) return in->Expected("'>'");
  return *letter;
}

// "[x, y]" or "[]": `item` reads one.
template <typename Item>
Status ReadList(Reader* in, const Item& item) {
  SkipSpace(in);
  if (!in->Take("[")) return in->Expected("'['");
  SkipSpace(in);
  if (in->Take("]")) return Ok();
  while (true) {
    SkipSpace(in);
    WC_TRY(item());
    SkipSpace(in);
    if (in->Take("]")) return Ok();
    if (!in->Take(",")) return in->Expected("',' or ']'");
  }
}

Result<std::string> ReadLists(std::string_view text) {
  Reader in{text};
  std::string modules;
  bool first = true;
  WC_TRY(ReadList(&in, [&]() -> Status {
    if (!first) modules += kStageEnd;
    first = false;
    return ReadList(&in, [&]() -> Status {
      modules += WC_TRY(ReadWord(&in));
      return CheckSize(modules.size());
    });
  }));
  WC_TRY(CheckSize(modules.size()));
  SkipSpace(&in);
  if (!in.done()) return in.Expected("the end");
  return modules;
}

// ---- what both say ----

// `letter` once, and at `place`.
Status CheckOnce(const std::string& modules, char letter, size_t place, const char* what) {
  const auto count = std::ranges::count(modules, letter);
  if (count == 1 && modules.find(letter) == place) return Ok();
  return Bad(std::string("expected one ") + what + ", found " + std::to_string(count) +
             (count == 1 ? ", module " + std::to_string(modules.find(letter)) : ""));
}

Result<std::vector<PipelineChunk>> ChunksOf(const std::string& modules) {
  if (modules.empty()) return Bad("no stage");
  WC_TRY(CheckOnce(modules, kEmbedding, 0, "embedding (E), first of the first stage"));
  WC_TRY(CheckOnce(modules, kOutput, modules.size() - 1, "loss (L), last of the last stage"));
  std::vector<PipelineChunk> chunks(1);
  bool predicted = false;  // in a chunk before
  for (size_t i = 0; i < modules.size(); ++i) {
    PipelineChunk& chunk = chunks.back();
    const std::string where = "module " + std::to_string(i);
    switch (modules[i]) {
      case kDecoder:
        if (predicted || chunk.mtp_layers > 0) {
          return Bad(where + ": a decoder layer (t) behind a prediction module (m)");
        }
        ++chunk.layers;
        break;
      case kMtp:
        if (predicted) return Bad(where + ": prediction modules (m) in more than one stage");
        ++chunk.mtp_layers;
        break;
      case kStageEnd:
        predicted = predicted || chunk.mtp_layers > 0;
        chunks.push_back({.first_layer = chunk.first_layer + chunk.layers});
        break;
      default:
        break;
    }
  }
  return chunks;
}

}  // namespace

Result<std::vector<PipelineChunk>> ParsePipelineLayout(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > 32 * kLayoutModulesMax) return Bad("too long");
  const bool words = text.starts_with('[');
  return ChunksOf(WC_TRY(words ? ReadLists(text) : ReadLetters(text)));
}

}  // namespace weightcast::layout
