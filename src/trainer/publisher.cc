#include "trainer/publisher.h"

#include <algorithm>

#include "base/log.h"
#include "layout/gather.h"
#include "trainer/encode.h"
#include "trainer/part_stream.h"

namespace weightcast::trainer {
namespace {

constexpr Duration kPollInterval = milliseconds(20);

std::string PutId(os::World& world) {
  std::array<uint8_t, 8> id{};
  world.random.Fill(id);
  return Hex(id);
}

// Bytes or redo file are not what they should be; anything else (disk full, I/O) may pass.
bool IsLost(const Error& error) {
  return error.code == Code::kDataLoss || error.code == Code::kInvalidData ||
         error.code == Code::kNotFound;
}

std::vector<std::pair<int32_t, tensor::Partial>> NextPartials(
    const std::vector<catalog::TensorPartial>& partials) {
  std::vector<std::pair<int32_t, tensor::Partial>> next;
  for (const catalog::TensorPartial& p : partials) next.emplace_back(p.tensor, p.next);
  return next;
}

class RankPublisher {
 public:
  RankPublisher(os::World& world, catalog::Catalog& catalog, store::Store& store,
                const RankShare& share, const PublishRequest& request,
                const PublisherOptions& options)
      : world_(world),
        catalog_(catalog),
        store_(store),
        run_(share.run),
        plan_hash_(share.plan.Hash()),
        rank_(share.rank),
        shards_(share.shards),
        baseline_(share.baseline),
        chunks_(share.chunks),
        request_(request),
        options_(options) {}

  Result<PublishReport> Run() {
    const SteadyTime start = world_.clock.Now();
    WC_TRY(SettlePending());
    report_.version = WC_TRY(catalog_.BeginVersion({.run = run_.uid,
                                                    .epoch = request_.epoch,
                                                    .number = request_.number,
                                                    .step_token = request_.step_token,
                                                    .full = request_.full,
                                                    .store_url = request_.store_url,
                                                    .labels = request_.labels,
                                                    .side_files = request_.side_files,
                                                    .staging_timeout = request_.staging_timeout}));
    const bool stands = WC_TRY(AnnouncementStands());
    if (!stands) {
      const Status published = EncodeAndAnnounce();
      if (!published.ok()) {
        FailIfHopeless(published.error());
        return published.error();
      }
    }
    report_.already = stands;
    if (stands) ShardsAreFree();
    if (report_.version.state == catalog::VersionState::kStaging && request_.wait_ready) {
      const Result<catalog::Version> ready =
          WaitReady(world_, catalog_, report_.version.uid, *request_.wait_ready);
      if (!ready.ok()) return ready.error();
      report_.version = *ready;
    }
    WC_TRY(SettlePending());
    report_.seconds_total = ToSeconds(world_.clock.Now() - start);
    return std::move(report_);
  }

  Status PrepareBase() {
    WC_TRY(SettlePending());
    const Result<catalog::Version> latest = catalog_.FindVersion(run_.uid, "latest");
    if (!latest.ok()) {
      return latest.error().code == Code::kNotFound ? Ok() : Status(latest.error());
    }
    report_.version.base = latest->uid;
    return BringToBase();
  }

 private:
  // An earlier call announced a part: what became of its version?
  Status SettlePending() {
    if (!baseline_.pending()) return Ok();
    const VersionUid uid = baseline_.pending()->version;
    const Result<catalog::Version> version = catalog_.GetVersion(uid);
    if (!version.ok()) {
      if (version.error().code == Code::kNotFound)
        return baseline_.DropPending();  // a rebuilt catalog
      return version.error();
    }
    switch (version->state) {
      case catalog::VersionState::kStaging:
        return Ok();
      case catalog::VersionState::kFailed:
        return version->failure.contains(catalog::kWrongBase) ? baseline_.BeginRebuild()
                                                              : baseline_.DropPending();
      default:
        break;
    }
    WC_TRY(WriteVersionJson(catalog_, *WC_TRY(options_.open_store(version->store_url)), *version));
    const Status advanced = baseline_.Advance(*run_.inventory, chunks_, options_.threads);
    if (advanced.ok() || !IsLost(advanced.error())) return advanced;
    Log(LogLevel::kWarning, "baseline cannot advance and will be rebuilt",
        {{"version", uid.brief()}, {"why", advanced.error().message}});
    return baseline_.BeginRebuild();
  }

  // True if this rank's part of the version is in the catalog already, with the content at hand.
  Result<bool> AnnouncementStands() {
    const std::vector<catalog::Announcement> all =
        WC_TRY(catalog_.GetAnnouncements(report_.version.uid));
    const auto mine = std::ranges::find(all, rank_, &catalog::Announcement::rank);
    const bool ready = report_.version.state == catalog::VersionState::kReady;
    if (mine == all.end() && !ready) return false;
    const std::string what = "version " + std::to_string(request_.number) + " of run " + run_.name;
    if (mine == all.end() || mine->plan != plan_hash_) {
      return Error{Code::kConflict, what + " is READY already, published in another layout"};
    }
    const auto found = WC_TRY(DigestShards(run_, chunks_, shards_, options_.threads));
    const auto expected = NextPartials(mine->partials);
    if (!std::ranges::equal(found, expected, [](const auto& a, const auto& b) {
          return a.first == b.first && a.second == b.second;
        })) {
      return Error{
          Code::kConflict,
          what + ": rank " + std::to_string(rank_.value) +
              " announced other weights than those at hand; a new content needs a new number"};
    }
    report_.stats = mine->stats;
    // Whoever made it READY may have died before this.
    if (ready) WC_TRY(WriteVersionJson(catalog_, store_, report_.version));
    return true;
  }

  Status EncodeAndAnnounce() {
    WC_TRY(BringToBase());
    Result<EncodeResult> encoded = Encode();
    if (encoded.ok() && TornBaseline(*encoded)) {
      Log(LogLevel::kWarning, "baseline does not digest to what it should and is rebuilt",
          {{"version", report_.version.base.brief()}});
      WC_TRY(baseline_.BeginRebuild());
      WC_TRY(BringToBase());
      encoded = Encode();
    }
    const EncodeResult result = WC_TRY(std::move(encoded));
    ShardsAreFree();
    return Announce(result);
  }

  // The baseline is then at the base of the version, or at none.
  Status BringToBase() {
    const VersionUid& base = report_.version.base;
    report_.raw = false;
    if (base.empty()) return baseline_.BeginRebuild();
    if (baseline_.version() == base) return Ok();
    const Status rebuilt = RebuildBaseline(
        world_, catalog_,
        {run_, base, chunks_, options_.seed, options_.open_store, options_.threads}, &baseline_);
    report_.baseline_rebuilt = rebuilt.ok();
    if (rebuilt.ok()) return Ok();
    if (rebuilt.error().code != Code::kUnavailable)
      return rebuilt.error().With("rebuilding the baseline");
    Log(LogLevel::kWarning, "no baseline: this rank's chunks go raw",
        {{"why", rebuilt.error().message}});
    report_.raw = true;
    return baseline_.BeginRebuild();
  }

  bool TornBaseline(const EncodeResult& result) const {
    if (baseline_.version().empty()) return false;
    std::vector<std::pair<int32_t, tensor::Partial>> base;
    for (const catalog::TensorPartial& p : result.partials) base.emplace_back(p.tensor, p.base);
    return PartialsHash(base) != baseline_.partials();
  }

  Result<std::unique_ptr<PartStream>> StartStream(catalog::ObjectRole role) {
    const catalog::Version& version = report_.version;
    const bool full = role != catalog::ObjectRole::kDelta;
    const delta::PartIdentity identity{
        .kind = full ? delta::PartKind::kFull : delta::PartKind::kDelta,
        .run = run_.uid,
        .version = version.uid,
        .base = full ? VersionUid{} : version.base,
        .epoch = version.epoch,
        .rank = rank_,
        .plan = plan_hash_,
        .layout = run_.inventory->signature()};
    const std::string key =
        catalog::PartKey(run_.uid, version.uid, version.epoch, rank_, PutId(world_), role);
    return PartStream::Start(store_, role, key, identity, options_.spool_bytes_max);
  }

  Result<EncodeResult> Encode() {
    const SteadyTime start = world_.clock.Now();
    const bool delta = !report_.version.base.empty();
    const bool full = report_.version.kind == catalog::VersionKind::kFull;
    WC_TRY(baseline_.BeginRedo());
    delta_ = nullptr;
    full_ = nullptr;
    if (delta) delta_ = WC_TRY(StartStream(catalog::ObjectRole::kDelta));
    if (full) full_ = WC_TRY(StartStream(catalog::ObjectRole::kFull));
    EncodeResult result = WC_TRY(EncodeChunks(world_, {.run = run_,
                                                       .chunks = chunks_,
                                                       .shards = shards_,
                                                       .baseline = baseline_,
                                                       .delta = delta_.get(),
                                                       .full = full_.get(),
                                                       .threads = options_.threads}));
    for (PartStream* stream : {delta_.get(), full_.get()}) {
      if (stream != nullptr) WC_TRY(stream->EndEncoding());
    }
    report_.seconds_diff = result.seconds_diff;
    report_.seconds_encode = result.seconds_encode;
    report_.seconds_stall += ToSeconds(world_.clock.Now() - start);
    return result;
  }

  void ShardsAreFree() const {
    if (options_.encoded) options_.encoded();
  }

  Status Announce(const EncodeResult& result) {
    const SteadyTime start = world_.clock.Now();
    catalog::Announcement announcement{.version = report_.version.uid,
                                       .epoch = report_.version.epoch,
                                       .rank = rank_,
                                       .plan = plan_hash_,
                                       .partials = result.partials};
    for (PartStream* stream : {delta_.get(), full_.get()}) {
      if (stream != nullptr) announcement.objects.push_back(WC_TRY(stream->Commit()));
    }
    WC_TRY(AddCarried(&announcement));
    report_.seconds_store = ToSeconds(world_.clock.Now() - start);

    catalog::PublishStats& stats = announcement.stats;
    stats.elements = result.elements;
    stats.changed_elements = result.changed_elements;
    for (const catalog::ObjectRef& object : announcement.objects) stats.wire_bytes += object.bytes;
    stats.payload_bytes = (delta_ != nullptr ? delta_ : full_)->payload_bytes();
    report_.stats = stats;

    const SteadyTime announced = world_.clock.Now();
    WC_TRY(baseline_.SetPending(report_.version.uid, PartialsHash(NextPartials(result.partials))));
    Result<catalog::Version> version = catalog_.Announce(announcement);
    report_.seconds_announce = ToSeconds(world_.clock.Now() - announced);
    if (!version.ok()) {
      // Some rank's baseline is not the base: none of them is believed any more.
      if (version.error().code == Code::kDataLoss) WC_TRY(baseline_.BeginRebuild());
      return version.error();
    }
    report_.version = *version;
    return Ok();
  }

  // Full versions name one object with the carried tensors; the first one that needs it writes it.
  Status AddCarried(catalog::Announcement* announcement) {
    if (run_.carried.empty() || report_.version.kind != catalog::VersionKind::kFull ||
        report_.version.participants.front() != rank_.value) {
      return Ok();
    }
    for (const catalog::Version& v : WC_TRY(catalog_.ListVersions(run_.uid))) {
      if (v.state != catalog::VersionState::kReady || v.store_url != request_.store_url) continue;
      const auto carried =
          std::ranges::find(v.objects, catalog::ObjectRole::kCarried, &catalog::ObjectRef::role);
      if (carried == v.objects.end()) continue;
      announcement->objects.push_back(*carried);
      return Ok();
    }
    if (options_.seed == nullptr) {
      return Error{Code::kUnavailable,
                   "the full version " + std::to_string(request_.number) + " needs the bytes of " +
                       std::to_string(run_.carried.size()) +
                       " carried tensors: say where the seed checkpoint lies (--seed)"};
    }
    announcement->objects.push_back(WC_TRY(WriteCarried()));
    return Ok();
  }

  Result<catalog::ObjectRef> WriteCarried() {
    const tensor::MappedWeights weights =
        WC_TRY(tensor::MappedWeights::Map(world_.fs, *options_.seed, /*writable=*/false));
    std::unique_ptr<PartStream> stream = WC_TRY(StartStream(catalog::ObjectRole::kCarried));
    delta::Scratch scratch;
    Bytes packed;
    Bytes payload;
    for (const int32_t tensor : run_.carried) {
      const tensor::TensorSpec& spec = (*run_.inventory)[static_cast<size_t>(tensor)];
      const tensor::Matrix matrix = spec.matrix();
      const layout::CellGrid grid = layout::CellGrid::For(matrix);
      for (int64_t cell = 0; cell < grid.cells(); ++cell) {
        const layout::Box box = grid.CellBox(cell);
        packed.resize(static_cast<size_t>(box.units() * matrix.unit_bytes));
        layout::GatherBox(matrix, box, weights.tensor(static_cast<size_t>(tensor)), packed);
        payload.clear();
        const delta::ChunkInfo info = delta::EncodeChunk(spec.dtype, {}, packed, scratch, &payload);
        WC_TRY(stream->Add({.tensor = tensor,
                            .box = box,
                            .method = info.method,
                            .without_base = true,
                            .changed_units = info.changed_units,
                            .base_digest = {},
                            .next_digest = tensor::DigestBox(matrix, box, packed)},
                           payload));
      }
    }
    WC_TRY(stream->EndEncoding());
    return stream->Commit();
  }

  // What no retry in this attempt can mend fails it for everybody, so that nobody waits for a
  // deadline.
  void FailIfHopeless(const Error& error) {
    if (error.code != Code::kInternal && error.code != Code::kInvalidData) return;
    const Status failed = catalog_.FailVersion(
        report_.version.uid, "rank " + std::to_string(rank_.value) + ": " + error.message);
    if (!failed.ok()) {
      Log(LogLevel::kWarning, "could not fail the attempt", {{"why", failed.error().message}});
    }
  }

  os::World& world_;
  catalog::Catalog& catalog_;
  store::Store& store_;
  const catalog::Run& run_;
  const PlanHash plan_hash_;
  const RankId rank_;
  const ShardSet& shards_;
  Baseline& baseline_;
  const layout::ChunkList& chunks_;
  const PublishRequest request_;
  const PublisherOptions& options_;

  PublishReport report_;
  std::unique_ptr<PartStream> delta_;
  std::unique_ptr<PartStream> full_;
};

}  // namespace

Result<PublishReport> PublishRank(os::World& world, catalog::Catalog& catalog, store::Store& store,
                                  const RankShare& share, const PublishRequest& request,
                                  const PublisherOptions& options) {
  return RankPublisher(world, catalog, store, share, request, options).Run();
}

Status PrepareBase(os::World& world, catalog::Catalog& catalog, store::Store& store,
                   const RankShare& share, const PublisherOptions& options) {
  return RankPublisher(world, catalog, store, share, {}, options).PrepareBase();
}

Status WriteVersionJson(catalog::Catalog& catalog, store::Store& store,
                        const catalog::Version& version) {
  const catalog::Run run = WC_TRY(catalog.GetRun(version.run));
  const auto digests = WC_TRY(catalog.GetDigests(version.uid));
  const Status put = store.Put(catalog::VersionJsonKey(version.run, version.uid),
                               AsBytes(catalog::EncodeVersionJson({run, version, digests})));
  if (put.ok() || put.error().code == Code::kAlreadyExists) return Ok();
  return put.error().With("version.json of version " + std::to_string(version.number));
}

Result<catalog::Version> WaitReady(os::World& world, catalog::Catalog& catalog,
                                   const VersionUid& uid, Duration timeout) {
  const os::Deadline deadline(world.clock, timeout);
  for (;;) {
    const catalog::Version version = WC_TRY(catalog.GetVersion(uid));
    const std::string what = "version " + std::to_string(version.number);
    if (version.state == catalog::VersionState::kFailed) {
      return Error{Code::kConflict, what + " FAILED: " + version.failure};
    }
    if (version.state != catalog::VersionState::kStaging) return version;
    if (deadline.passed()) {
      const size_t announced = WC_TRY(catalog.GetAnnouncements(uid)).size();
      return Error{Code::kDeadlineExceeded,
                   what + " is not READY: " + std::to_string(announced) + " of " +
                       std::to_string(version.participants.size()) + " ranks announced"};
    }
    world.clock.SleepFor(std::min(kPollInterval, deadline.left()));
  }
}

std::vector<int32_t> Participants(const layout::Plan& plan) {
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    if (!plan.ranks[rank].slices.empty()) ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

}  // namespace weightcast::trainer
