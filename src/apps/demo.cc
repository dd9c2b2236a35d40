// The demo: the main job on one machine, in real processes, with the accidents that happen.
//
//   4 trainer processes (TP2 x PP2, later TP4) hold shards and take AdamW steps; after each step
//   one `weightcast publish` a rank publishes its part; 3 image directories are moved by
//   `weightcast pull`.
#include <algorithm>

#include "apps/command.h"
#include "apps/demo_table.h"
#include "apps/model_source.h"
#include "apps/process.h"
#include "apps/toy_model.h"
#include "base/text.h"
#include "os/temp_dir.h"

namespace weightcast::apps {
namespace {

constexpr int64_t kVersions = 10;
constexpr int64_t kFullVersion = 5;
constexpr int64_t kKilledRankVersion =
    3;  // from here on, the first version in which it can be caught
constexpr int64_t kKilledHostVersion = 4;
constexpr int64_t kColdStartVersion = 7;
constexpr int64_t kNewLayoutVersion = 8;
constexpr int kHosts = 3;
constexpr Duration kPatience = seconds(120);
constexpr Duration kPoll = std::chrono::microseconds(200);

struct DemoFlags {
  std::string directory;
  bool keep = false;
  double learning_rate = 1e-6;
};

// ---- a trainer process ----

struct TrainerFlags {
  std::string shards;
  std::string checkpoint;
  int64_t rank = 0;
  double learning_rate = 1e-6;
};

// Answers "ready", then a line for each "step" on stdin.
Status Trainer(App& app, const TrainerFlags& flags) {
  const ModelSource source =
      WC_TRY(OpenShardSource(app.world(), flags.shards, flags.checkpoint + "/config.json", {}));
  ToyRank rank = WC_TRY(ToyRank::Load(app.world(), *source.plan, source.topology,
                                      static_cast<int32_t>(flags.rank), flags.checkpoint,
                                      static_cast<float>(flags.learning_rate)));
  std::puts("ready");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    rank.Step();
    WC_TRY(rank.Save(flags.shards));
    std::puts("stepped");
    std::fflush(stdout);
  }
  return Ok();
}

// ---- the coordinator ----

class Demo {
 public:
  Demo(App& app, const DemoFlags& flags, std::string directory)
      : app_(app), flags_(flags), dir_(std::move(directory)) {}

  Status Run() {
    const SteadyTime start = Now();
    Say("making a model of about 100 M parameters in " + dir_);
    WC_TRY(MakeToyModel(app_.world(), kDemoToy, 7, Path("seed")));
    WC_TRY(StartTrainers({.world = 4, .tp = 2, .pp = 2, .num_layers = 8}, "tp2pp2", Path("seed")));
    WC_TRY(RunJson({"publish", "--store", Store(), "--catalog", Catalog(), "--run", "demo",
                    "--seed", Path("seed")})
               .With("registering version 0"));
    for (int64_t number = 1; number <= kVersions; ++number) WC_TRY(OneVersion(number));
    WC_TRY(Prove());
    const double total = ToSeconds(Now() - start);
    Json document = {{"versions", table_.ToJson()},
                     {"events", events_},
                     {"root", root_},
                     {"hosts", kHosts},
                     {"seconds", total}};
    app_.Emit(document, table_.ToText() + "\n" + EventsText() + "\nproof: all " +
                            std::to_string(kHosts) + " hosts at root " + root_ +
                            ", equal to the trainer's, bit for bit (" + SecondsText(total) + ")\n");
    return Ok();
  }

 private:
  SteadyTime Now() { return app_.world().clock.Now(); }
  std::string Path(const std::string& name) const { return os::JoinPath(dir_, name); }
  std::string Catalog() const { return "sqlite:" + Path("catalog.db"); }
  std::string Store() const { return "file:" + Path("store"); }
  std::string Image(int host) const { return Path("host" + std::to_string(host)); }

  void Say(const std::string& line) { std::fprintf(stderr, "demo: %s\n", line.c_str()); }
  void Event(const std::string& line) {
    Say(line);
    events_.push_back(line);
  }
  std::string EventsText() const {
    std::string text;
    for (const auto& event : events_) text += "  " + event.get<std::string>() + "\n";
    return text;
  }

  Result<Process> Start(std::vector<std::string> words) {
    words.insert(words.begin(), app_.self());
    words.emplace_back("--json");
    return Process::Start(words);
  }

  static Result<Json> Finish(Process& process, const std::string& what) {
    const Process::Exit exit = WC_TRY(process.Wait(kPatience).With(what));
    if (exit.code != 0) {
      return Error{Code::kInternal, what + ": exit code " + std::to_string(exit.code)};
    }
    return ParseJson(exit.out).With(what);
  }

  Result<Json> RunJson(const std::vector<std::string>& words) {
    Process process = WC_TRY(Start(words));
    return Finish(process, words[0]);
  }

  Status StartTrainers(const layout::Topology& topology, const std::string& layout,
                       const std::string& checkpoint) {
    trainers_.clear();
    layout_ = layout;
    ++epoch_;
    WC_TRY(WriteTopology(app_.world(), topology, Path(layout)));
    for (int rank = 0; rank < topology.world; ++rank) {
      trainers_.push_back(WC_TRY(
          Start({"demo-trainer", "--shards", Path(layout), "--checkpoint", checkpoint, "--rank",
                 std::to_string(rank), "--learning-rate", std::to_string(flags_.learning_rate)})));
    }
    for (Process& trainer : trainers_) {
      if (const std::string said = WC_TRY(trainer.Hear(kPatience)); said != "ready") {
        return Error{Code::kInternal, "trainer said " + Quoted(said)};
      }
    }
    return Ok();
  }

  Status OneVersion(int64_t number) {
    if (number == kNewLayoutVersion) {
      WC_TRY(StartTrainers({.world = 4, .tp = 4, .pp = 1, .num_layers = 8}, "tp4", Image(0)));
      Event(
          "version 8: the trainer job came back in another layout, TP4 instead of TP2 x PP2, as "
          "epoch 2");
    }
    for (Process& trainer : trainers_) WC_TRY(trainer.Tell("step"));
    for (Process& trainer : trainers_) {
      WC_TRY(trainer.Hear(kPatience).With("a training step"));
    }
    VersionRow row{.number = number};
    WC_TRY(PublishAll(number, &row));
    WC_TRY(PullAll(number, &row));
    table_.Add(row);
    Say("version " + std::to_string(number) + ": " + std::to_string(row.changed_elements) +
        " elements changed, " + BytesText(row.wire_bytes) + " on the wire");
    return Ok();
  }

  std::vector<std::string> PublishWords(int64_t number, size_t rank) const {
    std::vector<std::string> words = {"publish",
                                      "--catalog",
                                      Catalog(),
                                      "--store",
                                      Store(),
                                      "--run",
                                      "demo",
                                      "--shards",
                                      Path(layout_),
                                      "--config",
                                      Path("seed/config.json"),
                                      "--rank",
                                      std::to_string(rank),
                                      "--number",
                                      std::to_string(number),
                                      "--epoch",
                                      std::to_string(epoch_),
                                      "--seed",
                                      Path("seed"),
                                      "--baseline",
                                      Path("baseline"),
                                      "--threads",
                                      "1",
                                      "--wait",
                                      "60"};
    if (number == kFullVersion) words.emplace_back("--full");
    return words;
  }

  Status PublishAll(int64_t number, VersionRow* row) {
    std::vector<Process> ranks;
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      ranks.push_back(WC_TRY(Start(PublishWords(number, rank))));
    }
    if (number >= kKilledRankVersion && !rank_killed_) {
      WC_TRY(KillInPublish(number, ranks.back()));
      if (rank_killed_) ranks.back() = WC_TRY(Start(PublishWords(number, ranks.size() - 1)));
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const Json report = WC_TRY(Finish(ranks[rank], "publishing rank " + std::to_string(rank)));
      const Json& times = *WC_TRY(JsonObject(report, "seconds"));
      row->changed_elements += WC_TRY(JsonInt(report, "changed_elements"));
      row->elements += WC_TRY(JsonInt(report, "elements"));
      row->wire_bytes += WC_TRY(JsonInt(report, "wire_bytes"));
      row->payload_bytes += WC_TRY(JsonInt(report, "payload_bytes"));
      row->kind = WC_TRY(JsonString(report, "kind"));
      row->stall = std::max(row->stall, times.value("stall", 0.0));
      row->publish = std::max(row->publish, times.value("total", 0.0));
    }
    return Ok();
  }

  // Has the last rank written some of its redo file, which is there only while it publishes?
  bool LastRankEncodes() {
    const std::string baselines = Path("baseline");
    const auto names = app_.world().fs.List(baselines);
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) {
      if (!name.ends_with("-r" + std::to_string(trainers_.size() - 1))) continue;
      const auto stat = app_.world().fs.StatPath(baselines + "/" + name + "/redo");
      if (stat.ok() && stat->size > 0) return true;
    }
    return false;
  }

  Status KillInPublish(int64_t number, Process& rank) {
    while (rank.running()) {
      if (!LastRankEncodes()) {
        app_.world().clock.SleepFor(kPoll);
        continue;
      }
      rank.Kill();
      WC_TRY(rank.Wait(kPatience));
      rank_killed_ = true;
      Event("version " + std::to_string(number) + ": rank " + std::to_string(trainers_.size() - 1) +
            " was killed with -9 while it published, and published again");
      return Ok();
    }
    return Ok();
  }

  std::vector<std::string> PullWords(int64_t number, int host) const {
    return {
        "pull",      "--catalog", Catalog(),  "--run", "demo", "--version", std::to_string(number),
        "--threads", "1",         Image(host)};
  }

  Status PullAll(int64_t number, VersionRow* row) {
    std::vector<Process> pulls;
    std::vector<int> hosts;
    for (int host = 0; host < kHosts; ++host) {
      if (host == kHosts - 1 && number < kColdStartVersion) continue;
      std::vector<std::string> words = PullWords(number, host);
      // Warm hosts do not need the seed; the cold one starts from the full version.
      if (number == 1) words.insert(words.end(), {"--seed", Path("seed")});
      pulls.push_back(WC_TRY(Start(words)));
      hosts.push_back(host);
    }
    if (number >= kKilledHostVersion && !host_killed_) {
      WC_TRY(KillInApply(number, pulls[1]));
      if (!pulls[1].running()) pulls[1] = WC_TRY(Start(PullWords(number, 1)));
    }
    for (size_t i = 0; i < pulls.size(); ++i) {
      const Json report = WC_TRY(Finish(pulls[i], "host " + std::to_string(hosts[i])));
      const Json& times = *WC_TRY(JsonObject(report, "seconds"));
      if (number == kColdStartVersion && hosts[i] == kHosts - 1) {
        Event("version 7: host 2 started cold (" + report.value("how", std::string()) + ", " +
              std::to_string(report["chain"].size()) + " versions replayed, " +
              BytesText(report.value("fetched_bytes", int64_t{0})) + " fetched)");
        continue;  // the table is about warm hosts
      }
      row->fetch = std::max(row->fetch, times.value("fetch", 0.0));
      row->prepare = std::max(row->prepare, times.value("prepare", 0.0));
      row->apply = std::max(row->apply, times.value("apply", 0.0));
    }
    return Ok();
  }

  // Is the image between two generations? (docs/formats/image.md: the state is a file's name.)
  bool Applying(int host) {
    const auto names = app_.world().fs.List(os::JoinPath(Image(host), ".weightcast"));
    return names.ok() && std::ranges::any_of(*names, [](const std::string& name) {
             return name.starts_with("applying-");
           });
  }

  // Kills the host's process in the middle of an apply.
  Status KillInApply(int64_t number, Process& pull) {
    while (pull.running()) {
      if (!Applying(1)) {
        app_.world().clock.SleepFor(kPoll);
        continue;
      }
      pull.Kill();
      WC_TRY(pull.Wait(kPatience));
      if (!Applying(1)) return Ok();  // too late; the next version is tried
      host_killed_ = true;
      Event("version " + std::to_string(number) +
            ": host 1 was killed with -9 in the middle of applying, and recovered");
      return Ok();
    }
    return Ok();
  }

  // The trainer's truth is made from the shards alone, without catalog or store.
  Status Prove() {
    if (!rank_killed_ || !host_killed_) {
      return Error{Code::kInternal,
                   "the accidents did not happen: no process could be caught in time"};
    }
    WC_TRY(RunJson({"convert", "--shards", Path(layout_), "--config", Path("seed/config.json"),
                    "--out", Path("truth")})
               .With("converting the trainer's shards"));
    for (int host = 0; host < kHosts; ++host) {
      const std::string who = "host " + std::to_string(host);
      const Json verified =
          WC_TRY(RunJson({"verify", Image(host), "--catalog", Catalog()}).With(who));
      const std::string root = WC_TRY(JsonString(verified, "root"));
      if (!root_.empty() && root != root_) {
        return Error{Code::kDataLoss, who + " is at root " + root + ", another at " + root_};
      }
      root_ = root;
      const Json diff = WC_TRY(RunJson({"diff", Path("truth"), Image(host)}).With(who));
      if (const int64_t changed = WC_TRY(JsonInt(diff, "changed_elements")); changed != 0) {
        return Error{Code::kDataLoss,
                     who + " differs from the trainer in " + std::to_string(changed) + " elements"};
      }
    }
    return Ok();
  }

  App& app_;
  const DemoFlags& flags_;
  const std::string dir_;
  std::vector<Process> trainers_;
  std::string layout_;
  int64_t epoch_ = 0;
  bool rank_killed_ = false;
  bool host_killed_ = false;
  DemoTable table_;
  Json events_ = Json::array();
  std::string root_;
};

Status RunDemo(App& app, const DemoFlags& flags) {
  if (!flags.directory.empty()) {
    WC_TRY(app.CheckEmpty(flags.directory));
    return Demo(app, flags, flags.directory).Run();
  }
  // About 2 GB of scratch: in memory if there is room.
  const Result<int64_t> memory = app.world().fs.FreeBytes("/dev/shm");
  const std::string parent = memory.ok() && *memory > 6 * kGiB ? "/dev/shm" : "/tmp";
  const os::TempDir scratch(app.world(), parent);
  return Demo(app, flags, scratch.path()).Run();
}

}  // namespace

std::vector<Command> DemoCommands() {
  return {{"demo", "run the main job on this machine, with its accidents, and show the result",
           "  weightcast demo\n  weightcast demo --dir /tmp/demo --json\n",
           [](Flags& f) {
             auto v = std::make_shared<DemoFlags>();
             f.Text("--dir", &v->directory,
                    "where to work, and what to keep; default: scratch, removed")
                 .Double("--learning-rate", &v->learning_rate, "of the trainers");
             return [v](App& app) { return RunDemo(app, *v); };
           }},
          {"demo-trainer", "", "", [](Flags& f) {
             auto v = std::make_shared<TrainerFlags>();
             f.RequiredText("--shards", &v->shards, "")
                 .RequiredText("--checkpoint", &v->checkpoint, "")
                 .Int("--rank", &v->rank, "")
                 .Double("--learning-rate", &v->learning_rate, "");
             return [v](App& app) { return Trainer(app, *v); };
           }}};
}

}  // namespace weightcast::apps
