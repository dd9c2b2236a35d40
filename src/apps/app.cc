#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "apps/command.h"
#include "base/text.h"

namespace weightcast::apps {
namespace {

// Names in messages come from files: control characters do not reach the terminal.
std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (!control || c == '\n' || c == '\t') {
      out += c;
    } else {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(c) & 0xffU);
      out += code;
    }
  }
  return out;
}

}  // namespace

void App::Emit(Json document, const std::string& text) {
  WC_CHECK(document_.is_null());
  document_ = std::move(document);
  if (json_) return;
  std::fputs(Printable(text).c_str(), stdout);
  std::fflush(stdout);
}

int App::Finish(const Status& status) {
  if (!status.ok()) {
    const Error& error = status.error();
    document_["error"] = {{"code", CodeName(error.code)}, {"message", error.message}};
    std::fprintf(stderr, "weightcast: %s\n", Printable(error.message).c_str());
  }
  if (json_ && !document_.is_null()) {
    // Paths and names may hold any bytes, JSON holds only UTF-8.
    const std::string text = document_.dump(2, ' ', false, Json::error_handler_t::replace);
    std::printf("%s\n", text.c_str());
  }
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written) std::fputs("weightcast: stdout: the result could not be written\n", stderr);
  if (!status.ok()) return ExitCode(status.error().code);
  return written ? 0 : ExitCode(Code::kUnavailable);
}

void App::Progress(const std::string& label, int64_t done, int64_t total) {
  if (::isatty(STDERR_FILENO) == 0 || total <= 0) return;
  constexpr int kWidth = 40;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(std::lround(share * kWidth));
  const std::string bar = std::string(static_cast<size_t>(filled), '=') +
                          std::string(static_cast<size_t>(kWidth - filled), ' ');
  std::fprintf(stderr, "\r%s [%s] %s of %s%s", label.c_str(), bar.c_str(), BytesText(done).c_str(),
               BytesText(total).c_str(), done >= total ? "\n" : "");
}

Status App::CheckInputs(const std::vector<std::pair<const char*, std::string>>& inputs) {
  std::vector<std::string> missing;
  for (const auto& [flag, path] : inputs) {
    if (path.empty() || WC_TRY(world_.fs.Exists(path).With(flag))) continue;
    missing.push_back(std::string(flag) + " " + Quoted(path));
  }
  if (missing.empty()) return Ok();
  return Error{Code::kInvalidArgument, "no such file or directory: " + JoinNames(missing)};
}

Status App::CheckEmpty(const std::string& path) {
  if (!WC_TRY(world_.fs.Exists(path))) return Ok();
  const std::vector<std::string> names = WC_TRY(world_.fs.List(path));
  if (names.empty()) return Ok();
  return Error{Code::kConflict,
               path + ": expected an empty directory, or none; it has " + JoinNames(names)};
}

std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string PercentText(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * fraction);
  return text;
}

std::string SecondsText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.3f s" : "%.1f s", value);
  return text;
}

}  // namespace weightcast::apps
