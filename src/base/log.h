// Logging: one line an event, fields beside it. spdlog stays behind this header.
//   Log(LogLevel::kInfo, "part stored", {{"version", "41"}, {"bytes", "8123"}});
// Any thread. Goes to stderr until SetLogSink; secrets are never passed here.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace weightcast {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

struct LogField {
  std::string_view name;
  std::string value;
};

using LogSink = std::function<void(LogLevel, std::string_view line)>;

void SetLogLevel(LogLevel level);
void SetLogSink(LogSink sink);  // a line that is on its way still goes to the old one
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace weightcast
