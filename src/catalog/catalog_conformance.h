// The conformance suite of Catalog: every implementation runs it. The cases are in
// conformance_*_test.cc; an implementation says in a test of its own:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, CatalogConformance, testing::Values(&MakeMemoryHome));
//
// The toy model has four tensors; a *content* is a number that stands for all its weights.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "os/world.h"

namespace weightcast::catalog {

// One database, and the handles that reach it.
class CatalogHome {
 public:
  virtual ~CatalogHome() = default;
  virtual Catalog& handle(size_t index) = 0;
  virtual size_t handles() const = 0;
  // Moves the database's clock. False if it cannot be moved: such cases are skipped.
  virtual bool Advance(Duration by) = 0;
};
using MakeCatalogHome = std::unique_ptr<CatalogHome> (*)();

class CatalogConformance : public testing::TestWithParam<MakeCatalogHome> {
 protected:
  using Run = catalog::Run;  // not testing::Test's private function

  CatalogConformance() : home_(GetParam()()) {}

  // The handles in turn: calls come from different processes.
  Catalog& db() { return home_->handle(turn_++ % home_->handles()); }

  Run MakeRun(const std::string& name, std::vector<int32_t> carried = {});
  Version MakeSeed(const Run& run, int content);
  Epoch MakeEpoch(const Run& run, const std::string& token, int ranks = 2);
  BeginRequest Request(const Run& run, Epoch epoch, int64_t number) const;
  // Begins and announces all ranks; READY.
  Version Publish(const Run& run, Epoch epoch, int64_t number, int base, int next,
                  bool full = false);
  // A run with v0 <- v1 <- v2 (full) <- v3 <- v4, of contents 0 to 4.
  struct Line {
    Run run;
    Epoch epoch;
    std::vector<Version> v;
  };
  Line MakeLine();

  std::unique_ptr<CatalogHome> home_;

 private:
  size_t turn_ = 0;
};

// BF16: "bias" [4], "empty" [0], "frozen" [3], "weight" [4, 2].
enum ToyTensor : int32_t { kBias, kEmpty, kFrozen, kWeight };
std::shared_ptr<const tensor::Inventory> ToyInventory();
PlanHash ToyPlan(int number);
std::vector<tensor::TensorDigest> ToyDigests(int content);
Root ToyRoot(int content);
std::vector<SideFileRow> ToySideFiles();
// What `rank` of version.participants says who moves its slices from one content to another.
Announcement ToyAnnouncement(const Version& version, int32_t rank, int base, int next,
                             const std::vector<int32_t>& carried = {});
ObjectRef ToyObject(const Version& version, int32_t rank, ObjectRole role, int64_t bytes = 1000);

// Where SQLite files of tests go: in memory if possible, since they sync thousands of times.
inline std::string ScratchParent() {
  const Result<bool> memory = os::RealWorld().fs.Exists("/dev/shm");
  return memory.ok() && *memory ? "/dev/shm" : "/tmp";
}

// "conflict: message" or "ok", for comparing with a pattern.
template <typename T>
std::string Text(const Result<T>& result) {
  if (result.ok()) return "ok";
  return std::string(CodeName(result.error().code)) + ": " + result.error().message;
}
// The value, or the test fails with the error's text.
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(Text(result));
  return std::move(*result);
}
#define EXPECT_OK(expression) EXPECT_EQ(::weightcast::catalog::Text(expression), "ok")

}  // namespace weightcast::catalog
