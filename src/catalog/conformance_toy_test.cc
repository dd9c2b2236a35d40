// The toy model of the conformance suite, and the fixture's helpers.
#include "catalog/catalog_conformance.h"
#include "tensor/root.h"

namespace weightcast::catalog {
namespace {

uint64_t Mix(int content, int32_t tensor, int32_t rank) {
  uint64_t x = static_cast<uint64_t>(content) * 1000003 + static_cast<uint64_t>(tensor) * 101 +
               static_cast<uint64_t>(rank + 1);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15;
  return x ^ (x >> 29);
}

tensor::TensorDigest ToyDigest(int content, int32_t tensor) {
  if (tensor == kEmpty) return {};
  return {Mix(content, tensor, -1), Mix(content, tensor, -1) >> 2};
}

// What rank `index` of `ranks` holds: a share of the units, and a digest such that all sum up.
tensor::Partial ToyPartial(int content, int32_t tensor, int32_t index, int32_t ranks) {
  const int64_t units = (*ToyInventory())[static_cast<size_t>(tensor)].units();
  const int64_t share = units / ranks;
  if (index < ranks - 1) {
    if (tensor == kEmpty) return {};
    return {{Mix(content, tensor, index), 0}, share};
  }
  tensor::Partial last{ToyDigest(content, tensor), units - share * (ranks - 1)};
  for (int32_t i = 0; i < ranks - 1; ++i) {
    last.digest = last.digest - ToyPartial(content, tensor, i, ranks).digest;
  }
  return last;
}

template <typename Id>
Id ToyId(int number) {
  Id id;
  id.value[0] = static_cast<uint8_t>(number);
  id.value[1] = 0xab;
  return id;
}

}  // namespace

std::shared_ptr<const tensor::Inventory> ToyInventory() {
  static const auto inventory = std::make_shared<const tensor::Inventory>(
      Must(tensor::Inventory::Make({{"bias", tensor::DType::kBf16, {4}},
                                    {"empty", tensor::DType::kBf16, {0}},
                                    {"frozen", tensor::DType::kBf16, {3}},
                                    {"weight", tensor::DType::kBf16, {4, 2}}})));
  return inventory;
}

PlanHash ToyPlan(int number) { return ToyId<PlanHash>(number); }

std::vector<tensor::TensorDigest> ToyDigests(int content) {
  std::vector<tensor::TensorDigest> digests;
  for (int32_t t = 0; t <= kWeight; ++t) digests.push_back(ToyDigest(content, t));
  return digests;
}

Root ToyRoot(int content) { return tensor::ComputeRoot(*ToyInventory(), ToyDigests(content)); }

std::vector<SideFileRow> ToySideFiles() {
  return {{"config.json", 12, ToyId<Sha256Digest>(1)},
          {"sub/vocab.txt", 0, ToyId<Sha256Digest>(2)}};
}

ObjectRef ToyObject(const Version& version, int32_t rank, ObjectRole role, int64_t bytes) {
  ObjectRef object;
  object.role = role;
  object.key = PartKey(version.run, version.uid, version.epoch, RankId{rank}, "put1", role);
  object.bytes = bytes;
  object.footer_bytes = 100;
  object.footer_sha256 = ToyId<Sha256Digest>(rank + 10);
  return object;
}

Announcement ToyAnnouncement(const Version& version, int32_t rank, int base, int next,
                             const std::vector<int32_t>& carried) {
  Announcement announcement;
  announcement.version = version.uid;
  announcement.epoch = version.epoch;
  announcement.rank = RankId{rank};
  announcement.plan = version.plan;
  const bool full = version.kind == VersionKind::kFull;
  if (!version.base.empty()) {
    announcement.objects.push_back(ToyObject(version, rank, ObjectRole::kDelta, 1000));
  }
  if (full) announcement.objects.push_back(ToyObject(version, rank, ObjectRole::kFull, 5000));
  const auto ranks = static_cast<int32_t>(version.participants.size());
  for (int32_t t = 0; t <= kWeight; ++t) {
    if (std::ranges::find(carried, t) != carried.end()) continue;
    announcement.partials.push_back(
        {t, ToyPartial(base, t, rank, ranks), ToyPartial(next, t, rank, ranks), false});
  }
  announcement.stats = {100, rank + 1, 900, 1000};
  return announcement;
}

catalog::Run CatalogConformance::MakeRun(const std::string& name, std::vector<int32_t> carried) {
  return Must(db().OpenRun({name, ToyInventory(), std::move(carried)}));
}

Version CatalogConformance::MakeSeed(const Run& run, int content) {
  return Must(
      db().RegisterSeed({run.uid, ToyDigests(content), ToySideFiles(), "file:/store/seed"}));
}

Epoch CatalogConformance::MakeEpoch(const Run& run, const std::string& token, int ranks) {
  EpochRequest request;
  request.run = run.uid;
  request.token = token;
  request.plan = ToyPlan(ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) request.participants.push_back(rank);
  return Must(db().OpenEpoch(request));
}

BeginRequest CatalogConformance::Request(const Run& run, Epoch epoch, int64_t number) const {
  BeginRequest request;
  request.run = run.uid;
  request.epoch = epoch;
  request.number = number;
  request.step_token = "step" + std::to_string(number);
  request.store_url = "file:/store";
  return request;
}

Version CatalogConformance::Publish(const Run& run, Epoch epoch, int64_t number, int base, int next,
                                    bool full) {
  BeginRequest request = Request(run, epoch, number);
  request.full = full;
  Version version = Must(db().BeginVersion(request));
  const std::vector<int32_t> ranks = version.participants;
  for (const int32_t rank : ranks) {
    version = Must(db().Announce(ToyAnnouncement(version, rank, base, next)));
  }
  EXPECT_EQ(StateName(version.state), "READY");
  return version;
}

CatalogConformance::Line CatalogConformance::MakeLine() {
  Line line;
  line.run = MakeRun("policy");
  line.v.push_back(MakeSeed(line.run, 0));
  line.epoch = MakeEpoch(line.run, "job");
  for (int n = 1; n <= 4; ++n) {
    line.v.push_back(Publish(line.run, line.epoch, n, n - 1, n, n == 2));
  }
  return line;
}

}  // namespace weightcast::catalog
