// The Python face of the C++ floors. Thin: arguments become C++ values, the GIL is released around
// work, errors become exceptions of weightcast.errors, reports become JSON text. What is convenient
// for people is made in Python on top. No exception of Python's crosses a floor: what a callback
// raises is kept (Progress) and raised from the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "agent/agent.h"
#include "agent/image_dir.h"
#include "apps/model_source.h"
#include "apps/reports.h"
#include "apps/wiring.h"
#include "base/log.h"
#include "base/text.h"
#include "bridge/mode.h"
#include "bridge/shard_keys.h"
#include "engine/target.h"
#include "trainer/job.h"
#include "trainer/seed.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weightcast {
namespace {

using tensor::TensorSpec;
using SpecRow = std::tuple<std::string, std::string, std::vector<int64_t>>;
using Array = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;

// An Error on its way to Python.
struct Thrown : std::exception {
  explicit Thrown(Error e) : error(std::move(e)) {}
  const char* what() const noexcept override { return error.message.c_str(); }
  Error error;
};

template <typename T>
T Value(Result<T>&& result) {
  if (!result.ok()) throw Thrown(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

// A message may quote bytes that are no UTF-8, such as file names.
nb::object Text(std::string_view text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// The class of weightcast.errors that stands for the code.
void Translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Thrown& thrown) {
    const nb::object by_code = nb::module_::import_("weightcast.errors").attr("BY_CODE");
    const std::string code(CodeName(thrown.error.code));
    const nb::object type = by_code[code.c_str()];
    PyErr_SetObject(type.ptr(), Text(thrown.error.message).ptr());
  }
}

// ---- threads and the interpreter ----

// When the interpreter goes down, a thread that asks for the GIL is ended by unwinding its stack,
// which C++ answers with std::terminate; and what still works when the libraries below are torn
// down crashes. So once `Leave` ran (at exit, before the interpreter goes down) nobody asks any
// more: pulls stop, callbacks are skipped, and a thread that would return to Python sleeps for the
// rest of the process.
std::atomic<bool> g_leaving{false};
std::atomic<int> g_working{0};   // threads that work for a call, without the GIL
std::atomic<int> g_entering{0};  // threads that are on their way into Python, or in a callback
std::thread::id g_leaver;        // the one that ran Leave: it still returns

// Counts a thread in, unless it is too late.
class Entry {
 public:
  Entry() {
    ++g_entering;
    open_ = !g_leaving || std::this_thread::get_id() == g_leaver;  // g_leaver is written before
    if (!open_) --g_entering;
  }
  ~Entry() {
    if (open_) --g_entering;
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  bool open() const { return open_; }

 private:
  bool open_ = false;
};

// Without the GIL while it lives.
class Unlocked {
 public:
  Unlocked() {
    if (g_leaving && std::this_thread::get_id() != g_leaver) {
      throw Thrown({Code::kUnavailable, "the process ends"});
    }
    ++g_working;
    state_ = PyEval_SaveThread();
  }
  ~Unlocked() {
    const Entry entry;
    --g_working;
    while (!entry.open()) ::pause();
    PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

// Waits at most `seconds` for those who work or are in a callback now.
void Leave(double seconds) {
  g_leaver = std::this_thread::get_id();
  g_leaving = true;
  PyThreadState* state = PyEval_SaveThread();
  for (double waited = 0; g_working + g_entering > 0 && waited < seconds; waited += 0.001)
    ::usleep(1000);
  PyEval_RestoreThread(state);
}

// Tells Python how far a work is, from any thread of the core. The first exception stops the work
// and is raised from the call that asked for it. On Python's main thread, signals are handled on
// the way, so that Ctrl-C ends the call.
class Progress {
 public:
  Progress(const std::optional<nb::callable>& call, bool on_main_thread)
      : call_(call), caller_(std::this_thread::get_id()), signals_(on_main_thread) {}

  Status operator()(int64_t done, int64_t total) {
    if (g_leaving && caller_ != g_leaver) return Error{Code::kAborted, "the process ends"};
    const bool look = signals_ && std::this_thread::get_id() == caller_ && LongAgo();
    if (!call_ && !look) return Ok();
    const Entry entry;
    if (!entry.open()) return Ok();
    const nb::gil_scoped_acquire locked;
    try {
      if (call_ && !raised_) (*call_)(done, total);
      if (look && PyErr_CheckSignals() != 0) throw nb::python_error();
    } catch (...) {
      if (!raised_) raised_ = std::current_exception();
    }
    return raised_ ? Status(Error{Code::kAborted, "stopped by its caller"}) : Ok();
  }

  // The result of the work, which is over, or what was raised.
  template <typename T>
  T Value(Result<T>&& result) {
    if (raised_) std::rethrow_exception(raised_);
    return weightcast::Value(std::move(result));
  }

 private:
  // Asking for the GIL may take 5 ms each time.
  bool LongAgo() {
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < std::chrono::milliseconds(100)) return false;
    looked_ = now;
    return true;
  }

  const std::optional<nb::callable>& call_;
  const std::thread::id caller_;
  const bool signals_;
  std::chrono::steady_clock::time_point looked_;  // by the caller's thread alone
  std::exception_ptr raised_;  // guarded by the GIL; by nothing once the work is over
};

// ---- arguments ----

Duration SecondsOf(std::string_view what, double value) {
  constexpr double kMost = 1e9;  // 31 years: a clock plus this still fits
  if (std::isnan(value) || value < 0) {
    throw Thrown(
        {Code::kInvalidArgument,
         std::string(what) + ": expected seconds from 0 on, found " + std::to_string(value)});
  }
  return Duration(static_cast<int64_t>(std::min(value, kMost) * 1e9));
}

int ThreadsOf(int threads) {
  constexpr int kMost = 1024;  // a machine's CPUs; more would end in a thread that does not start
  if (threads >= 0 && threads <= kMost) return threads;
  throw Thrown({Code::kInvalidArgument, "threads: expected 0 (all CPUs) to " +
                                            std::to_string(kMost) + ", found " +
                                            std::to_string(threads)});
}

std::vector<SpecRow> RowsOf(const std::vector<TensorSpec>& specs) {
  std::vector<SpecRow> rows;
  for (const TensorSpec& spec : specs) {
    rows.emplace_back(spec.name, std::string(tensor::DTypeName(spec.dtype)), spec.shape);
  }
  return rows;
}

std::vector<TensorSpec> SpecsOf(const std::vector<SpecRow>& rows) {
  std::vector<TensorSpec> specs;
  std::vector<std::string> unknown;
  for (const auto& [name, dtype_name, shape] : rows) {
    const std::optional<tensor::DType> dtype = tensor::DTypeFromName(dtype_name);
    if (!dtype) unknown.push_back(name + " (" + dtype_name + ")");
    specs.push_back({name, dtype.value_or(tensor::DType::kBf16), shape});
  }
  if (!unknown.empty()) {
    throw Thrown({Code::kInvalidData, "dtypes that no checkpoint has: " + JoinNames(unknown)});
  }
  return specs;
}

ByteSpan SpanOf(const Array& array) {
  return {static_cast<const uint8_t*>(array.data()), array.nbytes()};
}

nb::object FromJson(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return nb::module_::import_("json").attr("loads")(text);
}

// ---- trainer ----

struct PublisherArguments {
  std::string catalog;
  std::string store;
  std::string run;
  std::string seed;
  std::vector<std::string> carry;
  std::string baseline;
  std::string token;
  int32_t rank = 0;
  int threads = 0;
};

// One rank of a trainer job. Calls may come from any thread, one at a time.
class Publisher {
 public:
  Publisher(const PublisherArguments& arguments,
            const std::function<Result<apps::ModelSource>(const apps::SourceOptions&)>& plan)
      : stores_(os::RealWorld()), threads_(ThreadsOf(arguments.threads)) {
    os::World& world = os::RealWorld();
    catalog_ = Value(apps::OpenCatalog(world, arguments.catalog, /*create=*/true));
    store_ = Value(stores_.Open(arguments.store));
    if (!arguments.seed.empty()) {
      seed_ = Value(tensor::HfDirectory::Open(world.fs, arguments.seed).With("seed"));
    }
    const Result<catalog::Run> existing = catalog_->FindRun(arguments.run);
    if (!existing.ok() && existing.error().code != Code::kNotFound) throw Thrown(existing.error());
    const apps::ModelSource source = Value(plan(apps::ReferenceOf(
        existing.ok() ? &*existing : nullptr, seed_ ? &*seed_ : nullptr, arguments.carry)));
    trainer::RunStart start;
    start.name = arguments.run;
    start.inventory = source.plan->inventory;
    start.seed = seed_ ? &*seed_ : nullptr;
    start.carried = source.carried;
    start.threads = threads_;
    const catalog::Run run = Value(trainer::BeginRun(world, *catalog_, *store_, start));
    epoch_ = Value(catalog_->OpenEpoch({.run = run.uid,
                                        .token = arguments.token,
                                        .number = {},
                                        .plan = source.plan->Hash(),
                                        .participants = trainer::Participants(*source.plan)}));
    trainer::JobOptions options;
    options.plan = source.plan;
    options.rank = RankId{arguments.rank};
    options.baseline =
        arguments.baseline.empty() ? apps::DefaultBaseline(run.uid) : arguments.baseline;
    options.threads = threads_;
    options.seed = start.seed;
    options.open_store = [this](const std::string& url) { return stores_.Open(url); };
    job_ = Value(trainer::Job::Open(world, *catalog_, *store_, run, std::move(options)));
  }

  std::vector<SpecRow> params() const {
    std::vector<TensorSpec> specs;
    for (const layout::Param& param : job().own().params) {
      specs.push_back({param.key, param.dtype, param.shape});
    }
    return RowsOf(specs);
  }
  bool owns_nothing() const { return job().own().slices.empty(); }
  // Keys of the params that this rank owns something of: only their bytes are read.
  std::vector<std::string> owned() const {
    std::vector<std::string> keys;
    for (const size_t index : OwnedParams()) keys.push_back(job().own().params[index].key);
    return keys;
  }
  // The keys that Publish must be given of what a rank holds.
  std::vector<std::string> Choose(const std::vector<SpecRow>& held,
                                  const bridge::SameTensor& same) const {
    const auto specs = bridge::WithoutAliases(job().own(), SpecsOf(held), same);
    Value(bridge::CheckShardKeys(job().own(), specs, job().rank()));
    std::vector<std::string> keys;
    for (const layout::Param& param : job().own().params) keys.push_back(param.key);
    return keys;
  }
  std::string plan_hash() const { return job().plan().Hash().hex(); }
  int64_t epoch() const { return epoch_.value; }

  void PrepareBase() {
    trainer::Job& open = job();
    const Unlocked unlocked;
    Value(open.PrepareBase());
  }

  // Gives the baseline back, whoever still refers to this object.
  void Close() {
    const Unlocked unlocked;
    job_.reset();
    catalog_.reset();
  }

  // Arguments are Python's keywords.
  // NOLINTNEXTLINE(readability-function-size)
  nb::object Publish(const std::vector<std::pair<SpecRow, Array>>& given,
                     std::optional<int64_t> number, const std::string& step, bool full,
                     const std::map<std::string, std::string>& labels,
                     const std::string& side_files, std::optional<double> wait,
                     double staging_timeout, const std::optional<nb::callable>& encoded) {
    job();
    std::vector<SpecRow> rows;
    std::vector<ByteSpan> spans;
    for (const auto& [row, array] : given) {
      rows.push_back(row);
      spans.push_back(SpanOf(array));
    }
    const std::vector<TensorSpec> specs = SpecsOf(rows);
    const auto free = [&] {
      const Entry entry;
      if (!entry.open()) return;
      const nb::gil_scoped_acquire locked;
      try {
        (*encoded)();
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("weightcast: encoded");
      }
    };
    const Duration staging = SecondsOf("staging_timeout", staging_timeout);
    const std::optional<Duration> ready =
        wait ? std::optional(SecondsOf("wait", *wait)) : std::nullopt;
    trainer::PublishReport report;
    {
      const Unlocked unlocked;
      const trainer::ShardSet shards(Value(ByPlan(specs, spans)));
      trainer::PublishRequest request;
      request.epoch = epoch_;
      request.number = number ? *number : Value(trainer::NextNumber(*catalog_, job().run().uid));
      request.step_token = step.empty() ? std::to_string(request.number) : step;
      request.full = full;
      request.store_url = store_->url();
      request.labels = labels;
      if (!side_files.empty() && !catalog_->FindVersion(job_->run().uid, "0").ok()) {
        request.side_files = Value(trainer::PublishSideFiles(os::RealWorld(), *store_, side_files));
      }
      request.staging_timeout = staging;
      request.wait_ready = ready;
      report =
          Value(job_->Publish(shards, request, encoded ? std::function<void()>(free) : nullptr));
    }
    Json json = apps::ToJson(job_->run(), report.version, report);
    return FromJson(json);
  }

 private:
  trainer::Job& job() const {
    if (job_) return *job_;
    throw Thrown({Code::kConflict, "the publisher is closed"});
  }

  std::set<size_t> OwnedParams() const {
    std::set<size_t> owned;
    for (const layout::Slice& slice : job_->own().slices) {
      owned.insert(static_cast<size_t>(slice.param));
    }
    return owned;
  }

  // The given tensors in the order of the plan's parameters, all of them and of the right shape.
  // What this rank does not own may come without its bytes.
  Result<std::vector<ByteSpan>> ByPlan(const std::vector<TensorSpec>& specs,
                                       const std::vector<ByteSpan>& spans) const {
    WC_TRY(bridge::CheckShardKeys(job_->own(), specs, job_->rank()));
    const std::set<size_t> owned = OwnedParams();
    std::map<std::string_view, size_t> places;
    for (size_t i = 0; i < specs.size(); ++i) places.emplace(specs[i].name, i);
    std::vector<ByteSpan> params;
    for (const layout::Param& param : job_->own().params) {
      const size_t at = places.at(param.key);
      const ByteSpan span = spans[at];
      const int64_t bytes = specs[at].bytes();
      const bool read = owned.contains(params.size());
      if (static_cast<int64_t>(span.size()) != bytes && (read || !span.empty())) {
        return Error{Code::kInvalidData, param.key + ": expected " + std::to_string(bytes) +
                                             " bytes, found " + std::to_string(span.size())};
      }
      params.push_back(span);
    }
    return params;
  }

  apps::Stores stores_;
  const int threads_;
  std::unique_ptr<catalog::Catalog> catalog_;
  store::Store* store_ = nullptr;
  std::optional<tensor::HfDirectory> seed_;
  Epoch epoch_;
  std::unique_ptr<trainer::Job> job_;
};

std::unique_ptr<Publisher> ForTensors(const PublisherArguments& arguments,
                                      const std::vector<SpecRow>& rows) {
  const std::vector<TensorSpec> specs = SpecsOf(rows);
  const Unlocked unlocked;
  auto inventory = std::make_shared<const tensor::Inventory>(Value(tensor::Inventory::Make(specs)));
  if (inventory->units() == 0) {
    throw Thrown({Code::kInvalidData, "no tensor with an element: nothing to publish"});
  }
  return std::make_unique<Publisher>(arguments, [&](const apps::SourceOptions& options) {
    return apps::PlanForTensors(inventory, "the tensors given", options);
  });
}

// `record`: the rank's coordinates and layers as it knows them (rankN.json), or "". `held`: what
// the rank holds: it must fit the plan, and tells the rows of a padded embedding where nobody says
// so. All is compared before the run is made.
// NOLINTNEXTLINE(readability-function-size): arguments are Python's keywords
// What one rank of Megatron knows of its model and of itself; texts are JSON.
struct RankModel {
  std::string topology;
  std::string record;  // of the rank; "": none
  std::string config;
  std::string expert_layout;
  std::string mode;
  int64_t vocab_rows = 0;  // 0: as the rank's tensors say
};

template <size_t N>
void CheckChoice(const char* what, const std::string& value, const char* const (&known)[N]) {
  if (std::ranges::count(known, value) > 0) return;
  throw Thrown({Code::kInvalidArgument, std::string(what) + " " + Quoted(value) +
                                            ": expected one of " +
                                            JoinNames({std::begin(known), std::end(known)})});
}

std::unique_ptr<Publisher> ForRank(const PublisherArguments& arguments, const RankModel& told,
                                   const std::vector<SpecRow>& held,
                                   const bridge::SameTensor& same) {
  const std::vector<TensorSpec> specs = SpecsOf(held);
  const Unlocked unlocked;
  CheckChoice("expert_layout", told.expert_layout, bridge::kExpertLayouts);
  CheckChoice("mode", told.mode, bridge::kModes);
  bridge::MegatronConfig trainer = Value(bridge::MegatronConfig::Parse(told.topology));
  trainer.spelling.Learn(specs);
  const bridge::HfConfig model = Value(bridge::HfConfig::Parse(told.config));
  const RankId rank{arguments.rank};
  if (rank.value < 0 || rank.value >= trainer.topology.world) {
    throw Thrown({Code::kInvalidArgument, "rank " + std::to_string(rank.value) + " of a world of " +
                                              std::to_string(trainer.topology.world)});
  }
  if (!told.record.empty()) {
    Value(bridge::CheckRankRecord(trainer.topology, rank.value, told.record));
  }
  return std::make_unique<Publisher>(
      arguments, [&](apps::SourceOptions options) -> Result<apps::ModelSource> {
        options.expert_layout = bridge::ExpertLayoutOf(told.expert_layout);
        options.mode = bridge::ModeOf(told.mode);
        options.vocab_rows = told.vocab_rows;
        if (told.vocab_rows == 0) {
          options.vocab_rows = WC_TRY(bridge::VocabRowsOf(options.mode, model, trainer, specs));
        }
        apps::ModelSource source = WC_TRY(apps::PlanForRanks(model, trainer, options));
        const layout::RankPlan& own = source.plan->ranks[static_cast<size_t>(rank.value)];
        WC_TRY(bridge::CheckShardKeys(own, bridge::WithoutAliases(own, specs, same), rank));
        return source;
      });
}

// ---- image ----

agent::AgentOptions OptionsOf(const std::string& durability, int threads, double hold_seconds,
                              double turn_seconds) {
  agent::AgentOptions options;
  if (durability != "host" && durability != "process") {
    throw Thrown({Code::kInvalidArgument,
                  "durability " + Quoted(durability) + ": expected host or process"});
  }
  options.durability =
      durability == "host" ? agent::Durability::kHost : agent::Durability::kProcess;
  options.threads = ThreadsOf(threads);
  options.hold_timeout = SecondsOf("hold_seconds", hold_seconds);
  options.turn_timeout = SecondsOf("turn_seconds", turn_seconds);
  return options;
}

// NOLINTNEXTLINE(readability-function-size): arguments are Python's keywords
nb::object Pull(const std::string& catalog_url, const std::string& run, const std::string& image,
                const std::string& version, const std::string& seed, const std::string& store,
                const std::string& durability, int threads, double hold_seconds,
                double turn_seconds, const std::optional<nb::callable>& progress,
                bool on_main_thread) {
  const agent::AgentOptions options = OptionsOf(durability, threads, hold_seconds, turn_seconds);
  Progress told(progress, on_main_thread);
  Json json;
  {
    const Unlocked unlocked;
    os::World& world = os::RealWorld();
    apps::Stores stores(world);
    const auto catalog = Value(apps::OpenCatalog(world, catalog_url, /*create=*/false));
    const auto source = Value(agent::FromCatalog(*catalog, run, version));
    agent::Agent agent(
        world, [&](const std::string& url) { return stores.Open(store.empty() ? url : store); },
        options);
    const auto report = told.Value(agent.Pull(
        *source, image, seed, [&](int64_t done, int64_t total) { return told(done, total); }));
    json = apps::ToJson(report, source->run().name);
  }
  return FromJson(json);
}

nb::object Verify(const std::string& image, const std::string& catalog_url, int threads) {
  ThreadsOf(threads);
  Json json;
  {
    const Unlocked unlocked;
    os::World& world = os::RealWorld();
    std::unique_ptr<catalog::Catalog> catalog;
    if (!catalog_url.empty()) {
      catalog = Value(apps::OpenCatalog(world, catalog_url, /*create=*/false));
    }
    json = apps::ToJson(
        Value(agent::VerifyImage(world, image, threads, agent::DigestsIn(catalog.get()))));
  }
  return FromJson(json);
}

nb::object Versions(const std::string& catalog_url, const std::string& run_name) {
  Json json = Json::array();
  {
    const Unlocked unlocked;
    const auto catalog = Value(apps::OpenCatalog(os::RealWorld(), catalog_url, /*create=*/false));
    const catalog::Run run = Value(catalog->FindRun(run_name));
    const auto aliases = Value(catalog->ListAliases(run.uid));
    for (const catalog::Version& version : Value(catalog->ListVersions(run.uid))) {
      json.push_back(apps::ToJson(run, version, apps::AliasesOf(aliases, version.uid)));
    }
  }
  return FromJson(json);
}

// A journal that an image keeps: one step between two versions, to be written into other memory.
class Step {
 public:
  explicit Step(agent::Journal journal) : journal_(std::move(journal)) {}

  const agent::Journal& journal() const { return journal_; }
  std::string from() const { return journal_.identity().from_version.hex(); }
  std::string to() const { return journal_.identity().to_version.hex(); }
  std::vector<int32_t> tensors() const {
    std::vector<int32_t> tensors;
    for (const agent::JournalEntry& entry : journal_.entries()) {
      if (tensors.empty() || tensors.back() != entry.tensor) tensors.push_back(entry.tensor);
    }
    return tensors;
  }
  int64_t changed() const {
    int64_t units = 0;
    for (const agent::JournalEntry& entry : journal_.entries()) units += entry.changed;
    return units;
  }

 private:
  agent::Journal journal_;
};

// A held image. The hold lasts as long as this object or any view of a tensor.
class ImageHold {
 public:
  ImageHold(const std::string& path, double timeout) : path_(path) {
    const Duration wait = SecondsOf("timeout", timeout);
    const Unlocked unlocked;
    os::World& world = os::RealWorld();
    agent::Image image(world, path);
    auto hold = Value(image.TakeHold(wait));
    auto weights =
        Value(tensor::MappedWeights::Map(world.fs, hold.directory(), /*writable=*/false));
    state_ = std::make_shared<State>(std::move(hold), std::move(weights));
  }

  const agent::Manifest& manifest() const { return state().hold.manifest(); }
  const std::shared_ptr<const tensor::Inventory>& inventory() const {
    return state().hold.directory().inventory();
  }
  std::vector<SpecRow> specs() const { return RowsOf(inventory()->tensors()); }
  std::vector<std::string> digests() const {
    std::vector<std::string> all;
    for (const tensor::TensorDigest& digest : manifest().digests) all.push_back(digest.hex());
    return all;
  }
  ByteSpan bytes(size_t index) const {
    if (index >= inventory()->size()) throw nb::index_error("no such tensor");
    return state().weights.tensor(index);
  }

  int64_t units(size_t index) const {
    if (index >= inventory()->size()) throw nb::index_error("no such tensor");
    return (*inventory())[index].units();
  }

  // A read-only view of the canonical bytes, not a copy.
  nb::ndarray<nb::memview, nb::ro, const uint8_t, nb::ndim<1>> Tensor(size_t index) const {
    const ByteSpan span = bytes(index);
    auto* keeper = new std::shared_ptr<State>(state_);
    nb::capsule owner(keeper,
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<State>*>(p); });
    return {span.data(), {span.size()}, owner};
  }

  // The kept journals that lead from a version to the one held, in order; empty if they do not.
  std::vector<std::unique_ptr<Step>> StepsFrom(const std::string& uid_hex) const {
    state();
    const std::shared_ptr<State> held = state_;  // another thread may close meanwhile
    const Unlocked unlocked;
    const VersionUid from = Value(VersionUid::Parse(uid_hex));
    std::vector<std::unique_ptr<Step>> steps;
    const std::vector<agent::Step>& kept = held->hold.manifest().journals;
    for (auto it = kept.rbegin(); it != kept.rend(); ++it) {
      auto journal = agent::Journal::Open(os::RealWorld().fs, agent::JournalPath(path_, *it),
                                          held->hold.directory().inventory());
      if (!journal.ok()) return {};
      const VersionUid begins = journal->identity().from_version;
      steps.insert(steps.begin(), std::make_unique<Step>(std::move(*journal)));
      if (begins == from) return steps;
    }
    return {};
  }

  void Close() { state_.reset(); }

 private:
  struct State {
    State(agent::Hold h, tensor::MappedWeights w) : hold(std::move(h)), weights(std::move(w)) {}
    agent::Hold hold;
    tensor::MappedWeights weights;
  };
  const State& state() const {
    if (!state_) throw Thrown({Code::kConflict, path_ + ": the hold was given back"});
    return *state_;
  }

  std::string path_;
  std::shared_ptr<State> state_;
};

// ---- engine ----

using BlockRow = std::array<int64_t, 8>;  // tensor, row, rows, col, cols, address, strides

engine::Target MakeTarget(const ImageHold& hold, const std::vector<BlockRow>& rows) {
  std::vector<engine::Block> blocks;
  blocks.reserve(rows.size());
  for (const auto& [tensor, row, count, col, cols, address, row_stride, col_stride] : rows) {
    blocks.push_back({.tensor = static_cast<int32_t>(tensor),
                      .box = {.row = row, .rows = count, .col = col, .cols = cols},
                      .address = reinterpret_cast<uint8_t*>(address),  // NOLINT
                      .row_stride = row_stride,
                      .col_stride = col_stride});
  }
  return Value(engine::Target::Make(hold.inventory(), std::move(blocks)));
}

std::vector<std::tuple<std::string, int64_t, std::string>> DigestLive(
    const engine::Target& target, const std::vector<int32_t>& tensors, int threads) {
  std::vector<engine::Holding> holdings;
  {
    const Unlocked unlocked;
    holdings = Value(target.DigestLive(tensors, threads));
  }
  std::vector<std::tuple<std::string, int64_t, std::string>> rows;
  for (const engine::Holding& holding : holdings) {
    rows.emplace_back(holding.partial.digest.hex(), holding.partial.units, holding.span.hex());
  }
  return rows;
}

// The callable is never freed: a thread of the core may be calling it when it is replaced.
void SetPythonLog(const std::optional<nb::callable>& sink) {
  if (!sink) {
    SetLogSink({});
    SetLogLevel(LogLevel::kWarning);
    return;
  }
  PyObject* call = sink->inc_ref().ptr();
  SetLogSink([call](LogLevel level, std::string_view line) {
    const Entry entry;
    if (!entry.open()) return;
    const nb::gil_scoped_acquire locked;
    try {
      nb::borrow(call)(static_cast<int>(level), Text(line));
    } catch (nb::python_error& error) {  // a handler that fails must not stop a publish
      error.discard_as_unraisable("weightcast: a log line");
    }
  });
  SetLogLevel(LogLevel::kDebug);  // whoever listens decides what is shown
}

NB_MODULE(_core, m) {
  m.doc() = "C++ core of weightcast. Not for direct use: see weightcast, weightcast.errors.";
  m.attr("version") = WEIGHTCAST_VERSION;
  nb::register_exception_translator(Translate);

  nb::set_leak_warnings(false);  // an image still open at exit is no fault
  m.def("leave", &Leave, "seconds"_a,
        "At exit: no thread of the core enters Python any more; waits for those within.");
  m.def("set_log_sink", &SetPythonLog, "sink"_a.none(),
        "Log lines go to sink(level, line), level 0 (debug) to 3 (error); None: to stderr.");

  nb::class_<PublisherArguments>(m, "PublisherArguments")
      .def(nb::init<>())
      .def_rw("catalog", &PublisherArguments::catalog)
      .def_rw("store", &PublisherArguments::store)
      .def_rw("run", &PublisherArguments::run)
      .def_rw("seed", &PublisherArguments::seed)
      .def_rw("carry", &PublisherArguments::carry)
      .def_rw("baseline", &PublisherArguments::baseline)
      .def_rw("token", &PublisherArguments::token)
      .def_rw("rank", &PublisherArguments::rank)
      .def_rw("threads", &PublisherArguments::threads);
  nb::class_<RankModel>(m, "RankModel")
      .def(nb::init<>())
      .def_rw("topology", &RankModel::topology)
      .def_rw("record", &RankModel::record)
      .def_rw("config", &RankModel::config)
      .def_rw("expert_layout", &RankModel::expert_layout)
      .def_rw("mode", &RankModel::mode)
      .def_rw("vocab_rows", &RankModel::vocab_rows);
  nb::class_<Publisher>(m, "Publisher")
      .def_static("for_tensors", &ForTensors, "arguments"_a, "specs"_a)
      .def_static("for_rank", &ForRank, "arguments"_a, "model"_a, "held"_a, "same"_a)
      .def_prop_ro("params", &Publisher::params)
      .def_prop_ro("owns_nothing", &Publisher::owns_nothing)
      .def_prop_ro("owned", &Publisher::owned)
      .def("choose", &Publisher::Choose, "held"_a, "same"_a)
      .def_prop_ro("plan_hash", &Publisher::plan_hash)
      .def_prop_ro("epoch", &Publisher::epoch)
      .def("prepare_base", &Publisher::PrepareBase)
      .def("close", &Publisher::Close)
      .def("publish", &Publisher::Publish, "given"_a, "number"_a.none(), "step"_a, "full"_a,
           "labels"_a, "side_files"_a, "wait"_a.none(), "staging_timeout"_a, "encoded"_a.none());

  m.def("pull", &Pull, "catalog"_a, "run"_a, "image"_a, "version"_a, "seed"_a, "store"_a,
        "durability"_a, "threads"_a, "hold_seconds"_a, "turn_seconds"_a, "progress"_a.none(),
        "on_main_thread"_a);
  m.def("verify", &Verify, "image"_a, "catalog"_a, "threads"_a);
  m.def("versions", &Versions, "catalog"_a, "run"_a);

  nb::class_<Step>(m, "Step")
      .def_prop_ro("from_version", &Step::from)
      .def_prop_ro("to_version", &Step::to)
      .def_prop_ro("tensors", &Step::tensors)
      .def_prop_ro("changed", &Step::changed);
  nb::class_<ImageHold>(m, "ImageHold")
      .def(nb::init<const std::string&, double>(), "path"_a, "timeout"_a)
      .def_prop_ro("version", [](const ImageHold& h) { return h.manifest().version.hex(); })
      .def_prop_ro("number", [](const ImageHold& h) { return h.manifest().number; })
      .def_prop_ro("run", [](const ImageHold& h) { return h.manifest().run.hex(); })
      .def_prop_ro("root", [](const ImageHold& h) { return h.manifest().root.hex(); })
      .def_prop_ro("generation", [](const ImageHold& h) { return h.manifest().generation; })
      .def_prop_ro("specs", &ImageHold::specs)
      .def_prop_ro("digests", &ImageHold::digests)
      .def("units", &ImageHold::units, "index"_a)
      .def("tensor", &ImageHold::Tensor, "index"_a)
      .def("steps_from", &ImageHold::StepsFrom, "version"_a)
      .def("close", &ImageHold::Close);

  nb::class_<engine::Target>(m, "Target")
      .def_static("make", &MakeTarget, "hold"_a, "blocks"_a)
      .def("units", &engine::Target::UnitsOf, "tensor"_a)
      .def(
          "span", [](const engine::Target& t, int32_t i) { return t.SpanOf(i).hex(); }, "tensor"_a)
      .def(
          "compare",
          [](const engine::Target& target, const Step& step, const std::vector<int32_t>& tensors,
             int threads) {
            const Unlocked unlocked;
            std::vector<std::pair<int32_t, int64_t>> rows;
            for (const engine::Strangers& s :
                 Value(target.Compare(step.journal(), /*undo=*/false, tensors, threads))) {
              rows.emplace_back(s.tensor, s.units);
            }
            return rows;
          },
          "step"_a, "tensors"_a, "threads"_a)
      .def(
          "write",
          [](engine::Target& target, const Step& step, const std::vector<int32_t>& tensors,
             int threads) {
            const Unlocked unlocked;
            return Value(target.Write(step.journal(), /*undo=*/false, tensors, threads));
          },
          "step"_a, "tensors"_a, "threads"_a)
      .def("digest_live", &DigestLive, "tensors"_a, "threads"_a)
      .def(
          "digest_canonical",
          [](const engine::Target& target, int32_t index, const Array& bytes) {
            const Unlocked unlocked;
            const tensor::Partial partial = target.DigestCanonical(index, SpanOf(bytes));
            return std::pair(partial.digest.hex(), partial.units);
          },
          "tensor"_a, "bytes"_a);
  m.def(
      "digest",
      [](const Array& bytes) {
        const Unlocked unlocked;
        return tensor::DigestRun(0, SpanOf(bytes)).hex();
      },
      "bytes"_a, "Tensor digest (32 hex digits) of one whole canonical tensor.");
}

}  // namespace
}  // namespace weightcast
