#include "agent/agent.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "agent/apply.h"
#include "agent/image_dir.h"
#include "agent/lay_beside.h"
#include "agent/prepare.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "base/text.h"
#include "tensor/root.h"
#include "transfer/chain.h"
#include "transfer/fetchers.h"

namespace weightcast::agent {
namespace {

// Keeps a plan's lease while it lives.
class LeaseKeeper {
 public:
  LeaseKeeper(os::World& world, VersionSource& source, Duration lease_for)
      : world_(world), source_(source), lease_for_(lease_for) {}
  ~LeaseKeeper() {
    if (lease_.empty()) return;
    const Status ended = source_.EndLease(lease_);
    if (!ended.ok())
      Log(LogLevel::kWarning, "lease not ended", {{"reason", ended.error().message}});
  }

  void Take(const LeaseId& lease) {
    lease_ = lease;
    renewed_ = world_.clock.Now();
  }
  // Any thread. A lease that cannot be renewed shows when an object is missing.
  void Renew() {
    MutexLock lock(mu_);
    const SteadyTime now = world_.clock.Now();
    if (lease_.empty() || now - renewed_ < lease_for_ / 3) return;
    renewed_ = now;
    const Status status = source_.RenewLease(lease_, lease_for_);
    if (!status.ok()) {
      Log(LogLevel::kWarning, "lease not renewed", {{"reason", status.error().message}});
    }
  }

 private:
  os::World& world_;
  VersionSource& source_;
  const Duration lease_for_;
  Mutex mu_;
  LeaseId lease_;
  SteadyTime renewed_{};
};

// The image as it stands when the pull begins.
struct Standing {
  Manifest manifest;
  tensor::HfDirectory directory;
};

class PullRun {
 public:
  PullRun(os::World& world, const Agent::OpenStore& open_store, const AgentOptions& options,
          VersionSource& source, std::string path, std::string seed_path,
          std::function<Status(int64_t, int64_t)> progress)
      : world_(world),
        options_(options),
        source_(source),
        path_(std::move(path)),
        seed_path_(std::move(seed_path)),
        progress_(std::move(progress)),
        fetchers_(world, open_store),
        lease_(world, source, options.lease) {}

  Result<PullReport> Run() {
    const SteadyTime begin = world_.clock.Now();
    report_.run = target().run;
    report_.number = target().number;
    report_.version = target().uid;
    report_.root = target().root;
    WC_TRY(CheckSideNames(target().side_files));
    digests_ = WC_TRY(source_.Digests(target().uid));
    if (digests_.size() != source_.run().inventory->size()) {
      return Error{Code::kDataLoss, "version " + target().uid.hex() + ": has " +
                                        std::to_string(digests_.size()) + " digests for " +
                                        std::to_string(source_.run().inventory->size()) +
                                        " tensors"};
    }
    const auto lock = WC_TRY(LockMover());
    WC_TRY(Look());
    WC_TRY(Go());
    fetchers_.AddBytes(&report_.sources);
    for (const auto& [kind, bytes] : report_.sources) {
      if (kind != "seed") report_.fetched_bytes += bytes;
    }
    report_.seconds_total = ToSeconds(world_.clock.Now() - begin);
    return report_;
  }

 private:
  const catalog::Version& target() const { return source_.target(); }
  const tensor::Inventory& inventory() const { return *source_.run().inventory; }
  JournalRules rules() const {
    return {options_.durability, options_.journal_bytes_max, options_.sync_every,
            options_.undo_kept};
  }

  // One pull at a time: the lock lies beside the image, which may be exchanged or not yet be there.
  Result<std::unique_ptr<os::File>> LockMover() {
    WC_TRY(Image(world_, path_).Exists());  // a directory of someone else's gets no lock of ours
    const std::string parent = os::ParentPath(path_);
    WC_TRY(world_.fs.MakeDirectories(parent));
    if (WC_TRY(world_.fs.Kind(parent)) == os::FsKind::kNetwork) {
      Log(LogLevel::kWarning,
          "on a network file system neither locks nor mappings are to be trusted",
          {{"image", path_}});
    }
    auto lock = WC_TRY(world_.fs.OpenFile(
        os::JoinPath(parent, "." + os::BaseName(path_) + ".weightcast-lock"), os::Open::kCreate));
    const Status locked = lock->LockFor(os::Lock::kExclusive, options_.turn_timeout);
    if (locked.ok()) return lock;
    return Error{locked.error().code,
                 path_ + ": another pull is at work: " + locked.error().message};
  }

  // Recovers the image if it must be, and removes what dead pulls left behind.
  Status Look() {
    WC_TRY(RemoveNext(world_.fs, path_));
    Image image(world_, path_);
    if (!WC_TRY(image.Exists())) return Ok();
    auto hold = image.TakeHold(options_.hold_timeout);
    if (!hold.ok()) {
      if (hold.error().code != Code::kDataLoss) return hold.error();
      lost_ = hold.error().message;
      Log(LogLevel::kWarning, "image is lost and will be laid anew", {{"reason", lost_}});
      return Ok();
    }
    standing_ = Standing{hold->manifest(), hold->directory()};
    return RemoveUnnamed(world_.fs, path_, standing_->manifest);
  }

  Status Go() {
    if (standing_) {
      WC_TRY(MendSideFiles(world_.fs, path_, standing_->manifest, SourcesOfSideFiles({}),
                           standing_->manifest.durability == Durability::kHost));
    }
    if (standing_ && standing_->manifest.version == target().uid) return StayCurrent();
    if (standing_ && WC_TRY(TryUndo())) return Ok();
    const bool fits = standing_ && *standing_->directory.inventory() == *source_.run().inventory;
    catalog::ReplayRequest request;
    request.target = target().uid;
    if (fits) request.have = standing_->manifest.version;
    request.holder = path_;
    request.lease = options_.lease;
    const catalog::ReplayPlan plan = WC_TRY(Plan(std::move(request)));
    lease_.Take(plan.lease);
    for (const catalog::Version& step : plan.steps) report_.chain.push_back(step.uid);

    const SteadyTime begin = world_.clock.Now();
    const transfer::Chain chain = WC_TRY(transfer::Chain::Load(
        inventory(), plan, [&](const catalog::Version& v) { return fetchers_.For(v); }));
    report_.seconds_fetch = ToSeconds(world_.clock.Now() - begin);
    return plan.start == catalog::ReplayStart::kImage ? StepByJournal(plan, chain)
                                                      : LayAnew(plan, chain);
  }

  Status StayCurrent() {
    report_.how = "current";
    const Manifest& manifest = standing_->manifest;
    if (manifest.root == target().root && manifest.digests == digests_) return Ok();
    return Error{Code::kDataLoss, path_ + ": claims version " + target().uid.hex() +
                                      ", whose root is " + target().root.hex() + "; found root " +
                                      manifest.root.hex()};
  }

  // The image alone, if that will do; else with the seed, which must be digested to be known.
  Result<catalog::ReplayPlan> Plan(catalog::ReplayRequest request) {
    std::optional<Error> without_seed;
    if (!request.have.empty() || seed_path_.empty()) {
      auto plan = source_.Plan(request);
      if (plan.ok()) return plan;
      without_seed = plan.error();
    }
    if (!seed_path_.empty() && (!without_seed || without_seed->code == Code::kUnavailable)) {
      request.seed = WC_TRY(RootOfSeed().With("seed " + seed_path_));
      auto plan = source_.Plan(request);
      if (plan.ok()) return plan;
      without_seed = plan.error();
    }
    if (standing_ && request.have.empty() && without_seed->code == Code::kUnavailable) {
      return Error{Code::kConflict,
                   path_ + ": has another inventory: " +
                       tensor::DifferenceText(inventory(), *standing_->directory.inventory()) +
                       "; and it cannot be laid anew: " + without_seed->message};
    }
    if (!lost_.empty()) return without_seed->With(lost_);
    return *without_seed;
  }

  Result<Root> RootOfSeed() {
    seed_ = WC_TRY(tensor::HfDirectory::Open(world_.fs, seed_path_));
    const auto weights = WC_TRY(tensor::MappedWeights::Map(world_.fs, *seed_, false));
    const auto digests = WC_TRY(tensor::DigestAll(*seed_->inventory(), weights, options_.threads));
    return tensor::ComputeRoot(*seed_->inventory(), digests);
  }

  // Goes back over kept journals, if one of them begins at the target.
  Result<bool> TryUndo() {
    const Manifest& from = standing_->manifest;
    for (size_t undone = 1; undone <= from.journals.size(); ++undone) {
      const Step& step = from.journals[from.journals.size() - undone];
      const auto older = ReadManifest(world_.fs, path_, step.from);
      if (!older.ok()) return false;
      if (older->version != target().uid) continue;
      if (older->root != target().root || older->digests != digests_) return false;
      const Manifest to = UndoneManifest(from, *older, undone, rules(), world_.boot_id);
      return Undo(from, to);
    }
    return false;
  }

  Result<bool> Undo(const Manifest& from, const Manifest& to) {
    std::deque<Journal> journals;
    std::vector<Op> ops;
    for (const Step& step : to.steps) {
      auto journal =
          Journal::Open(world_.fs, JournalPath(path_, step), standing_->directory.inventory());
      if (!journal.ok()) return false;
      report_.journal_bytes += journal->bytes();
      journals.push_back(std::move(*journal));
      ops.push_back({&journals.back(), true});
    }
    if (!WC_TRY(SideFilesStaged(world_.fs, path_, from, to))) return false;
    auto weights =
        WC_TRY(tensor::MappedWeights::Map(world_.fs, standing_->directory, /*writable=*/true));
    WC_TRY(Apply(from, to, ops, weights));
    report_.how = "undo";
    return true;
  }

  Status StepByJournal(const catalog::ReplayPlan& plan, const transfer::Chain& chain) {
    report_.how = "journal";
    Manifest& from = standing_->manifest;
    const auto begin = world_.clock.Now();
    const auto batches =
        chain.Batches(options_.batch_payload_bytes_max, ThreadCount(options_.threads));
    WC_TRY(MakeRoom(world_.fs, path_, &from, JournalBytesMax(inventory(), batches), rules()));
    const Manifest to = NextManifest(from, {target(), digests_}, rules(), world_.boot_id);
    WC_TRY(StageSideFiles(world_.fs, path_, from, to, SourcesOfSideFiles(plan),
                          to.durability == Durability::kHost));
    auto weights =
        WC_TRY(tensor::MappedWeights::Map(world_.fs, standing_->directory, /*writable=*/true));
    const auto reading =
        WC_TRY(tensor::MappedWeights::Map(world_.fs, standing_->directory, /*writable=*/false));
    // In memory (tmpfs) a page that was read is at hand for writing: the pause is a third. On a
    // disk the kernel pays more to make a read page writable than to bring one: there four times as
    // long.
    const bool in_memory = WC_TRY(world_.fs.Kind(path_)) == os::FsKind::kMemory;
    const PrepareRequest request = {path_,
                                    standing_->directory.inventory(),
                                    in_memory ? weights : reading,
                                    from,
                                    to,
                                    chain,
                                    batches,
                                    options_.threads,
                                    [&] { lease_.Renew(); },
                                    progress_};
    const Prepared prepared = WC_TRY(WriteJournal(world_, request).With(path_));
    report_.journal_bytes = prepared.journal_bytes;
    report_.changed_units = prepared.changed_units;
    const Journal journal = WC_TRY(Journal::Open(world_.fs, JournalPath(path_, to.steps.front()),
                                                 standing_->directory.inventory()));
    report_.seconds_prepare = ToSeconds(world_.clock.Now() - begin);
    return Apply(from, to, std::vector<Op>{{&journal, false}}, weights);
  }

  Status Apply(const Manifest& from, const Manifest& to, std::span<const Op> ops,
               tensor::MappedWeights& weights) {
    const tensor::Inventory& mine = *standing_->directory.inventory();
    WC_TRY(CheckSums(mine, from, to, ops).With(path_));
    const std::string text = EncodeManifest(to);
    WC_TRY(WriteNew(world_.fs, ManifestPath(path_, to.generation), AsBytes(text),
                    to.durability == Durability::kHost || SideNamesDiffer(from, to)));
    const os::Deadline deadline(world_.clock, options_.hold_timeout);
    ApplyTimes times;
    WC_TRY(ApplyStep({world_, path_, from, to, ops, mine, weights, options_.threads}, deadline,
                     &times));
    report_.seconds_apply = ToSeconds(times.apply);
    report_.seconds_verify = ToSeconds(times.verify);
    return RemoveUnnamed(world_.fs, path_, to);
  }

  Status LayAnew(const catalog::ReplayPlan& plan, const transfer::Chain& chain) {
    report_.how = "beside";
    WC_TRY(RefuseForeignFiles());
    LayRequest request;
    request.image = path_;
    request.inventory = source_.run().inventory;
    request.chain = &chain;
    if (plan.start == catalog::ReplayStart::kSeed) request.base = &*seed_;
    const bool same = seed_ && *seed_->inventory() == inventory();
    if (same && options_.keep_layout_of_seed) request.layout_of = &*seed_;
    request.side_sources = SourcesOfSideFiles(plan);
    request.tick = [&] { lease_.Renew(); };
    request.progress = progress_;
    Manifest& manifest = request.manifest;
    manifest.generation = WC_TRY(NextGeneration(world_.fs, path_));
    manifest.run = target().run;
    manifest.version = target().uid;
    manifest.number = target().number;
    manifest.root = target().root;
    manifest.layout = inventory().signature();
    manifest.durability = options_.durability;
    manifest.boot_id = world_.boot_id;
    manifest.synced = manifest.generation;
    manifest.side_files = target().side_files;
    manifest.digests = digests_;
    LayTimes times;
    WC_TRY(LayBeside(
        world_, std::move(request),
        {options_.threads, options_.batch_payload_bytes_max, options_.weight_file_bytes_max},
        options_.hold_timeout, &times));
    report_.seconds_prepare = ToSeconds(times.prepare);
    report_.seconds_apply = ToSeconds(times.apply);
    if (times.base_bytes > 0) report_.sources["seed"] += times.base_bytes;
    return Ok();
  }

  // An image that is replaced goes, and what others put there must not go with it.
  Status RefuseForeignFiles() {
    if (!standing_ && lost_.empty()) return Ok();
    const auto foreign =
        WC_TRY(ForeignNames(world_.fs, path_, target().side_files).With("looking at " + path_));
    if (foreign.empty()) return Ok();
    return Error{Code::kConflict, path_ +
                                      ": must be laid anew, and holds files that no image of "
                                      "ours put there: " +
                                      JoinNames(foreign) + "; move them away"};
  }

  SideSources SourcesOfSideFiles(const catalog::ReplayPlan& plan) {
    SideSources sources;
    if (!seed_path_.empty()) sources.directories.push_back(seed_path_);
    if (standing_) sources.directories.push_back(path_);
    std::vector<std::string> urls = {target().store_url};
    for (const catalog::Version& step : plan.steps) urls.push_back(step.store_url);
    urls.push_back(plan.start_version.store_url);
    for (const std::string& url : urls) {
      const bool known = std::ranges::find(sources.stores, url) != sources.stores.end();
      if (!url.empty() && !known) sources.stores.push_back(url);
    }
    sources.open_store = [&](const std::string& url) { return fetchers_.StoreOf(url); };
    sources.from_store = [&](int64_t bytes) { report_.sources["store"] += bytes; };
    return sources;
  }

  os::World& world_;
  const AgentOptions& options_;
  VersionSource& source_;
  const std::string path_;
  const std::string seed_path_;
  const std::function<Status(int64_t, int64_t)> progress_;
  transfer::Fetchers fetchers_;
  LeaseKeeper lease_;

  PullReport report_;
  std::vector<tensor::TensorDigest> digests_;  // of the target
  std::optional<Standing> standing_;           // none: no image, or a lost one
  std::string lost_;                           // why the image cannot be used
  std::optional<tensor::HfDirectory> seed_;    // once it was digested
};

}  // namespace

Agent::Agent(os::World& world, OpenStore open_store, AgentOptions options)
    : world_(world), open_store_(std::move(open_store)), options_(options) {}

Result<PullReport> Agent::Pull(VersionSource& source, const std::string& path,
                               const std::string& seed_path,
                               const std::function<Status(int64_t, int64_t)>& progress) {
  std::string absolute = WC_TRY(world_.fs.Absolute(path));
  while (absolute.size() > 1 && absolute.ends_with('/')) absolute.pop_back();
  const std::string name = os::BaseName(absolute);
  if (name.empty() || name == "." || name == "..") {
    return Error{Code::kInvalidArgument, path + ": expected a directory with a name of its own"};
  }
  PullRun run(world_, open_store_, options_, source, absolute, seed_path, progress);
  return run.Run();
}

}  // namespace weightcast::agent
