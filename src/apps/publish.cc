// publish: one writer, all ranks, or one rank.
#include <algorithm>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/process.h"
#include "apps/reports.h"
#include "apps/spelling_flags.h"
#include "apps/wiring.h"
#include "base/log.h"
#include "base/text.h"
#include "trainer/job.h"
#include "trainer/seed.h"

namespace weightcast::apps {
namespace {

// How long the other ranks get to end by themselves once one has failed.
constexpr Duration kPatienceAfterFailure = seconds(10);

struct PublishFlags {
  std::string catalog;
  std::string store;
  std::string run;
  std::string model;
  std::string shards;
  std::string config;
  std::string seed;
  std::string baseline;
  std::string fork;
  std::string step;
  std::string mode = bridge::kModes[0];
  std::vector<std::string> carry;
  std::vector<std::string> labels;
  std::optional<int64_t> rank;
  std::optional<int64_t> number;
  std::optional<int64_t> epoch;
  std::optional<int64_t> wait;
  int64_t full_every = 0;
  int64_t threads = 0;
  int64_t staging_timeout = 3600;
  int64_t vocab_rows = 0;
  SpellingFlags spelling;
  bool full = false;
};

Error Usage(const std::string& what) { return {Code::kInvalidArgument, "publish: " + what}; }

Result<std::map<std::string, std::string>> ParseLabels(const std::vector<std::string>& labels) {
  std::map<std::string, std::string> out;
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Usage("--label " + Quoted(label) + ": expected k=v");
    }
    out[label.substr(0, equals)] = label.substr(equals + 1);
  }
  return out;
}

// Registering the seed alone publishes no version of the trainer: what describes one does not fit.
Status CheckSeedAlone(const PublishFlags& f) {
  const std::pair<const char*, bool> given[] = {
      {"--number", f.number.has_value()}, {"--full", f.full},
      {"--full-every", f.full_every > 0}, {"--fork", !f.fork.empty()},
      {"--rank", f.rank.has_value()},     {"--step", !f.step.empty()},
      {"--label", !f.labels.empty()},     {"--wait", f.wait.has_value()}};
  std::vector<std::string> unfit;
  for (const auto& [flag, is_given] : given) {
    if (is_given) unfit.emplace_back(flag);
  }
  if (unfit.empty()) return Ok();
  return Usage("--seed without MODEL_DIR or --shards only registers version 0; found also " +
               JoinNames(unfit));
}

Status CheckFlags(const PublishFlags& f) {
  if (!f.model.empty() && !f.shards.empty())
    return Usage("expected MODEL_DIR or --shards, not both");
  if (f.model.empty() && f.shards.empty() && f.seed.empty()) {
    return Usage("expected MODEL_DIR, --shards DIR or --seed HF_DIR");
  }
  if (f.model.empty() && f.shards.empty()) return CheckSeedAlone(f);
  if (f.rank && (f.shards.empty() || !f.number || !f.epoch)) {
    return Usage("--rank needs --shards, --number and --epoch, equal on all ranks");
  }
  if (f.number && *f.number < 1) {
    return Usage("--number " + std::to_string(*f.number) +
                 ": publishing starts at 1; version 0 is the seed");
  }
  WC_TRY(ParseLabels(f.labels));
  return Ok();
}

// A checkpoint without any element has no root that proves anything.
Status CheckElements(const tensor::HfDirectory& model) {
  if (model.inventory()->units() > 0) return Ok();
  return Error{Code::kInvalidData, model.path() + ": no tensor with an element, found " +
                                       std::to_string(model.inventory()->size()) +
                                       " empty tensors"};
}

std::string ToText(const catalog::Run& run, const catalog::Version& version,
                   const trainer::PublishReport& report) {
  const catalog::PublishStats& stats = report.stats;
  const std::string name = "version " + std::to_string(version.number) + " of run " + run.name;
  std::string text = name + ": state: " + std::string(catalog::StateName(version.state)) + ", " +
                     std::string(catalog::KindName(version.kind)) + ", epoch " +
                     std::to_string(version.epoch.value) + ", uid " + version.uid.hex() + "\n";
  if (stats.elements > 0) {
    text += "  changed " + std::to_string(stats.changed_elements) + " of " +
            std::to_string(stats.elements) + " elements (" + PercentText(Density(stats)) +
            "), wire " + BytesText(stats.wire_bytes) + ", stall " +
            SecondsText(report.seconds_stall) + ", total " + SecondsText(report.seconds_total) +
            "\n";
  }
  if (report.baseline_rebuilt) text += "  the baseline was missing or elsewhere and was rebuilt\n";
  if (report.raw) text += "  no baseline could be had: sent without one\n";
  if (!version.root.empty()) text += "  root " + version.root.hex() + "\n";
  return text;
}

// One invocation: what is published, into which run, under which epoch and number.
class Publish {
 public:
  Publish(App& app, const PublishFlags& flags) : app_(app), flags_(flags) {}

  Status Run() {
    WC_TRY(CheckFlags(flags_));
    WC_TRY(app_.CheckInputs({{"MODEL_DIR", flags_.model},
                             {"--shards", flags_.shards},
                             {"--config", flags_.config},
                             {"--seed", flags_.seed}}));
    catalog_ = WC_TRY(app_.OpenCatalog(flags_.catalog));
    store_ = WC_TRY(app_.OpenStore(flags_.store));
    if (!flags_.seed.empty()) {
      seed_ = WC_TRY(tensor::HfDirectory::Open(app_.world().fs, flags_.seed).With("--seed"));
      WC_TRY(CheckElements(*seed_));
    }
    if (flags_.model.empty() && flags_.shards.empty()) return SeedOnly();
    WC_TRY(OpenSource());
    WC_TRY(OpenRun());
    if (flags_.rank) return OneRank(RankId{static_cast<int32_t>(*flags_.rank)});
    WC_TRY(OpenEpoch());
    WC_TRY(ChooseNumber());
    return flags_.shards.empty() ? OneRank(RankId{0}) : AllRanks();
  }

 private:
  Status SeedOnly() {
    const trainer::RunStart start = Start(WC_TRY(CarriedNames(*seed_->inventory(), flags_.carry)));
    const trainer::RegisteredSeed seed =
        WC_TRY(trainer::RegisterSeed(app_.world(), *catalog_, *store_, *seed_,
                                     {.run_name = start.name,
                                      .carried = start.carried,
                                      .threads = start.threads,
                                      .progress = start.progress}));
    const trainer::PublishReport moved_nothing;
    app_.Emit(ToJson(seed.run, seed.version, moved_nothing),
              ToText(seed.run, seed.version, moved_nothing));
    return Ok();
  }

  trainer::RunStart Start(std::vector<std::string> carried) {
    const int64_t total = seed_ ? seed_->inventory()->bytes() : 0;
    trainer::RunStart start;
    start.name = flags_.run;
    start.seed = seed_ ? &*seed_ : nullptr;
    start.carried = std::move(carried);
    start.threads = static_cast<int>(flags_.threads);
    start.progress = [this, total](int64_t done) { app_.Progress("seed", done, total); };
    return start;
  }

  // The reference that the produced names must fit: the run's own inventory, else the seed's.
  Status OpenSource() {
    Result<catalog::Run> existing = catalog_->FindRun(flags_.run);
    if (!existing.ok() && existing.error().code != Code::kNotFound) return existing.error();
    if (existing.ok()) run_ = *existing;
    SourceOptions options =
        ReferenceOf(run_ ? &*run_ : nullptr, seed_ ? &*seed_ : nullptr, flags_.carry);
    options.vocab_rows = flags_.vocab_rows;
    options.spelling = flags_.spelling.trainers();
    options.expert_layout = bridge::ExpertLayoutOf(flags_.spelling.expert_layout);
    options.mode = bridge::ModeOf(flags_.mode);
    options.for_every_rank = !flags_.rank;
    options.rank = flags_.rank.value_or(0);
    source_ = WC_TRY(flags_.shards.empty()
                         ? OpenHfSource(app_.world(), flags_.model, options)
                         : OpenShardSource(app_.world(), flags_.shards, flags_.config, options));
    return source_.directory ? CheckElements(*source_.directory) : Ok();
  }

  Status OpenRun() {
    if (!flags_.fork.empty()) return Fork();
    trainer::RunStart start = Start(source_.carried);
    start.inventory = source_.plan->inventory;
    run_ = WC_TRY(trainer::BeginRun(app_.world(), *catalog_, *store_, start));
    return Ok();
  }

  Status Fork() {
    const size_t at = flags_.fork.find('@');
    if (at == std::string::npos)
      return Usage("--fork " + Quoted(flags_.fork) + ": expected RUN@VERSION");
    const catalog::Run origin = WC_TRY(catalog_->FindRun(flags_.fork.substr(0, at)));
    const catalog::Version version =
        WC_TRY(catalog_->FindVersion(origin.uid, flags_.fork.substr(at + 1)));
    run_ = WC_TRY(catalog_->ForkRun(flags_.run, version.uid));
    return trainer::WriteVersionJson(*catalog_, *WC_TRY(app_.OpenStore(version.store_url)),
                                     WC_TRY(catalog_->FindVersion(run_->uid, "0")));
  }

  Status OpenEpoch() {
    catalog::EpochRequest request{.run = run_->uid,
                                  .token = {},
                                  .number = {},
                                  .plan = source_.plan->Hash(),
                                  .participants = trainer::Participants(*source_.plan)};
    if (flags_.epoch) {
      request.number = Epoch{*flags_.epoch};
    } else {
      // One invocation is one life of the trainer job.
      std::array<uint8_t, 16> token{};
      app_.world().random.Fill(token);
      request.token = "publish-" + Hex(token);
    }
    epoch_ = WC_TRY(catalog_->OpenEpoch(request));
    return Ok();
  }

  Status ChooseNumber() {
    number_ = flags_.number ? *flags_.number : WC_TRY(trainer::NextNumber(*catalog_, run_->uid));
    return Ok();
  }

  bool WantsFull() const {
    return flags_.full || (flags_.full_every > 0 && number_ % flags_.full_every == 0);
  }

  Result<trainer::PublishRequest> Request() {
    const std::map<std::string, std::string> labels = WC_TRY(ParseLabels(flags_.labels));
    trainer::PublishRequest request{
        .epoch = epoch_,
        .number = number_,
        .step_token = flags_.step.empty() ? std::to_string(number_) : flags_.step,
        .full = WantsFull(),
        .store_url = store_->url(),
        .labels = labels,
        .side_files = {},
        .staging_timeout = seconds(flags_.staging_timeout),
        .wait_ready = {}};
    if (flags_.wait) request.wait_ready = seconds(*flags_.wait);
    // A run that began from a seed has its side files; otherwise they come with the weights.
    if (!catalog_->FindVersion(run_->uid, "0").ok() && !source_.side_files.empty()) {
      if (source_.shards) WC_TRY(bridge::CheckPlainWeights(*source_.shards));
      request.side_files =
          WC_TRY(trainer::PublishSideFiles(app_.world(), *store_, source_.side_files));
    }
    return request;
  }

  Status OneRank(RankId rank) {
    if (flags_.rank) {
      number_ = *flags_.number;
      WC_TRY(OpenEpoch());
    }
    const layout::RankPlan& own = source_.plan->ranks[static_cast<size_t>(rank.value)];
    if (own.slices.empty()) {
      app_.Emit(
          {{"rank", rank.value}, {"state", "nothing to publish"}},
          "rank " + std::to_string(rank.value) + " owns nothing and has nothing to publish\n");
      return Ok();
    }
    Result<trainer::ShardSet> shards = source_.OpenShards(app_.world(), rank);
    if (!shards.ok()) {
      FailAttempt("rank " + std::to_string(rank.value) + ": " + shards.error().message);
      return shards.error();
    }
    trainer::JobOptions options;
    options.plan = source_.plan;
    options.rank = rank;
    options.baseline = flags_.baseline.empty() ? DefaultBaseline(run_->uid) : flags_.baseline;
    options.threads = static_cast<int>(flags_.threads);
    if (seed_) options.seed = &*seed_;
    options.open_store = [&](const std::string& url) { return app_.OpenStore(url); };
    const auto job =
        WC_TRY(trainer::Job::Open(app_.world(), *catalog_, *store_, *run_, std::move(options)));
    const trainer::PublishReport report = WC_TRY(job->Publish(*shards, WC_TRY(Request())));
    app_.Emit(ToJson(*run_, report.version, report), ToText(*run_, report.version, report));
    return Ok();
  }

  std::vector<std::string> RankCommand(int32_t rank) const {
    std::vector<std::string> argv = {app_.self(),
                                     "publish",
                                     "--json",
                                     "--catalog",
                                     flags_.catalog,
                                     "--store",
                                     flags_.store,
                                     "--run",
                                     flags_.run,
                                     "--shards",
                                     flags_.shards,
                                     "--rank",
                                     std::to_string(rank),
                                     "--number",
                                     std::to_string(number_),
                                     "--epoch",
                                     std::to_string(epoch_.value),
                                     "--threads",
                                     std::to_string(flags_.threads),
                                     "--staging-timeout",
                                     std::to_string(flags_.staging_timeout),
                                     "--vocab-rows",
                                     std::to_string(source_.vocab_rows),
                                     "--expert-layout",
                                     flags_.spelling.expert_layout,
                                     "--mode",
                                     flags_.mode,
                                     "--wait",
                                     std::to_string(flags_.wait.value_or(600))};
    const std::pair<const char*, const std::string*> texts[] = {
        {"--config", &flags_.config},
        {"--seed", &flags_.seed},
        {"--baseline", &flags_.baseline},
        {"--step", &flags_.step},
        {"--mtp-inner", &source_.spelling.mtp_inner},
        {"--tower", &source_.spelling.tower}};
    for (const auto& [flag, value] : texts) {
      if (!value->empty()) argv.insert(argv.end(), {flag, *value});
    }
    if (source_.spelling.mtp_at_root.value_or(false)) argv.emplace_back("--mtp-at-root");
    for (const std::string& pattern : flags_.carry) argv.insert(argv.end(), {"--carry", pattern});
    for (const std::string& label : flags_.labels) argv.insert(argv.end(), {"--label", label});
    if (WantsFull()) argv.emplace_back("--full");
    return argv;
  }

  // A rank that fails makes the version fail everywhere, so that nobody waits for it.
  void FailAttempt(const std::string& reason) {
    const Result<std::vector<catalog::Version>> versions = catalog_->ListVersions(run_->uid);
    for (const catalog::Version& v : versions.ok() ? *versions : std::vector<catalog::Version>{}) {
      if (v.state != catalog::VersionState::kStaging || v.number != number_ || v.epoch != epoch_) {
        continue;
      }
      const Status failed = catalog_->FailVersion(v.uid, reason);
      if (!failed.ok()) {
        Log(LogLevel::kWarning, "could not fail the attempt", {{"why", failed.error().message}});
      }
    }
  }

  Status AllRanks() {
    const SteadyTime start = app_.world().clock.Now();
    std::vector<std::pair<int32_t, Process>> ranks;
    for (const int32_t rank : trainer::Participants(*source_.plan)) {
      ranks.emplace_back(rank, WC_TRY(Process::Start(RankCommand(rank))));
    }
    trainer::PublishReport report;
    std::optional<Error> failed;
    std::optional<os::Deadline> patience;
    while (!ranks.empty() && !(patience && patience->passed())) {
      const auto ended = std::ranges::find_if(ranks, [](auto& r) { return !r.second.running(); });
      if (ended == ranks.end()) {
        app_.world().clock.SleepFor(milliseconds(5));
        continue;
      }
      const Process::Exit exit = WC_TRY(ended->second.Wait(seconds(60)));
      const Status counted = CountRank(ended->first, exit, &report);
      ranks.erase(ended);
      if (counted.ok()) continue;
      FailAttempt(counted.error().message);
      // The others learn of it and end with a conflict; the cause has the lower exit code.
      if (!failed || ExitCode(counted.error().code) < ExitCode(failed->code))
        failed = counted.error();
      if (!patience) patience.emplace(app_.world().clock, kPatienceAfterFailure);
    }
    if (failed) return *failed;
    report.version = WC_TRY(catalog_->FindVersion(run_->uid, std::to_string(number_)));
    report.stats = report.version.stats;
    report.seconds_total = ToSeconds(app_.world().clock.Now() - start);
    app_.Emit(ToJson(*run_, report.version, report), ToText(*run_, report.version, report));
    return Ok();
  }

  // Adds a rank's times (the slowest counts) or turns its failure into ours.
  static Status CountRank(int32_t rank, const Process::Exit& exit, trainer::PublishReport* report) {
    const std::string who = "rank " + std::to_string(rank);
    const Result<Json> document = ParseJson(exit.out);
    if (exit.code != 0) {
      for (const Code code :
           {Code::kInvalidArgument, Code::kDataLoss, Code::kConflict, Code::kUnavailable}) {
        if (ExitCode(code) != exit.code || !document.ok()) continue;
        const Json error = document->value("error", Json::object());
        return Error{code, who + ": " + error.value("message", "failed")};
      }
      return Error{Code::kInternal, who + " ended with exit code " + std::to_string(exit.code)};
    }
    if (!document.ok()) return document.error().With(who);
    const Json seconds = document->value("seconds", Json::object());
    const std::pair<const char*, double*> times[] = {{"diff", &report->seconds_diff},
                                                     {"encode", &report->seconds_encode},
                                                     {"stall", &report->seconds_stall},
                                                     {"store", &report->seconds_store},
                                                     {"announce", &report->seconds_announce}};
    for (const auto& [name, time] : times) *time = std::max(*time, seconds.value(name, 0.0));
    report->baseline_rebuilt |= document->value("baseline_rebuilt", false);
    report->already |= document->value("already", false);
    return Ok();
  }

  App& app_;
  const PublishFlags& flags_;
  std::unique_ptr<catalog::Catalog> catalog_;
  store::Store* store_ = nullptr;
  std::optional<tensor::HfDirectory> seed_;
  std::optional<catalog::Run> run_;
  ModelSource source_;
  Epoch epoch_;
  int64_t number_ = 0;
};

}  // namespace

std::vector<Command> PublishCommands() {
  return {
      {"publish", "publish weights as the next version of a run",
       "  # register the seed checkpoint as version 0 (moves no weight bytes)\n"
       "  weightcast publish --catalog sqlite:c.db --store file:bytes --run policy --seed "
       "SEED_DIR\n"
       "  # a Hugging Face directory becomes the next version\n"
       "  weightcast publish --catalog sqlite:c.db --store file:bytes --run policy MODEL_DIR\n"
       "  # all Megatron ranks of a directory, one process each, a full version every 10\n"
       "  weightcast publish --catalog sqlite:c.db --store file:bytes --run policy "
       "--shards SHARDS --full-every 10\n"
       "  # one rank of a trainer job\n"
       "  weightcast publish --catalog sqlite:c.db --store file:bytes --run policy "
       "--shards SHARDS --rank 3 --number 41 --epoch 2 --wait 60\n",
       [](Flags& f) {
         auto v = std::make_shared<PublishFlags>();
         f.RequiredText("--catalog", &v->catalog, "sqlite:PATH")
             .RequiredText("--store", &v->store, "file:PATH, where bytes go")
             .RequiredText("--run", &v->run, "name of the run; made if missing")
             .OptionalArgument("MODEL_DIR", &v->model, "a Hugging Face directory")
             .Text("--shards", &v->shards,
                   "Megatron ranks: topology.json, rankN.json, rankN.safetensors")
             .Text("--config", &v->config, "model config; default SHARDS/../hf_source/config.json")
             .Int("--rank", &v->rank, "publish one rank's part and return")
             .Int("--number", &v->number, "version number; default the latest + 1", kJsonIntMax)
             .Int("--epoch", &v->epoch, "the current one joins, a higher one opens and fences",
                  kJsonIntMax)
             .Text("--step", &v->step, "step token, equal on all ranks; default the number")
             .Text("--seed", &v->seed, "the seed checkpoint; registers version 0 if missing")
             .Bool("--full", &v->full, "write a full version")
             .Int("--full-every", &v->full_every, "a full version when number mod N = 0; 0: never")
             .Int("--wait", &v->wait, "seconds to wait for READY", kSecondsMax)
             .Text("--baseline", &v->baseline,
                   "where baselines are kept; default under XDG_STATE_HOME")
             .Texts("--carry", &v->carry, "pattern of seed tensors that the trainer does not hold")
             .Texts("--label", &v->labels, "k=v, kept with the version")
             .Text("--fork", &v->fork, "RUN@VERSION: begin the run from a version of another")
             .Int("--vocab-rows", &v->vocab_rows,
                  "rows of the padded embedding, where neither topology nor own shard tells; 0: "
                  "told",
                  bridge::kVocabRowsMax);
         AddMode(f, &v->mode);
         AddSpellingFlags(f, &v->spelling);
         f.Int("--threads", &v->threads, "0: all CPUs", kThreadsMax)
             .Int("--staging-timeout", &v->staging_timeout,
                  "seconds after which an unfinished attempt is FAILED", kSecondsMax);
         return [v](App& app) { return Publish(app, *v).Run(); };
       }}};
}

}  // namespace weightcast::apps
