#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

#include "base/mutex.h"

namespace weightcast {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};

// Never destroyed: threads may still log while the process ends.
struct SinkSlot {
  Mutex mu;
  std::shared_ptr<const LogSink> sink WC_GUARDED_BY(mu);
};
SinkSlot& Slot() {
  static auto* slot = new SinkSlot;
  return *slot;
}

spdlog::logger& StderrLogger() {
  static auto* logger =
      new spdlog::logger("weightcast", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return *logger;
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

void SetLogSink(LogSink sink) {
  auto next = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  MutexLock lock(Slot().mu);
  Slot().sink.swap(next);
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (level < g_level) return;
  std::string line(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.name;
    line += '=';
    line += field.value;
  }
  std::shared_ptr<const LogSink> sink;
  {
    MutexLock lock(Slot().mu);
    sink = Slot().sink;
  }
  if (sink) {
    (*sink)(level, line);
  } else {
    StderrLogger().log(ToSpdlog(level), line);
  }
}

}  // namespace weightcast
