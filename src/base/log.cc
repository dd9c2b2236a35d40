#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace weightcast {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};
LogSink g_sink;

spdlog::logger& StderrLogger() {
  static spdlog::logger logger("weightcast", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void SetLogLevel(LogLevel level) {
  g_level = level;
  StderrLogger().set_level(ToSpdlog(level));
}

void SetLogSink(LogSink sink) { g_sink = std::move(sink); }

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (level < g_level) return;
  std::string line(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.name;
    line += '=';
    line += field.value;
  }
  if (g_sink) {
    g_sink(level, line);
  } else {
    StderrLogger().log(ToSpdlog(level), line);
  }
}

}  // namespace weightcast
