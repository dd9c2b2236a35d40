#include "engine/vllm.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/text.h"
#include "engine/http.h"

namespace weightcast::engine {
namespace {

constexpr std::array<std::string_view, 6> kStates = {"new",      "serving",  "preparing",
                                                     "prepared", "updating", "fenced"};
constexpr std::array<std::string_view, 4> kHows = {"live", "repacked", "probed", "unproven"};
constexpr std::array<const char*, 3> kPauseModes = {"wait", "abort", "keep"};

// Proofs name every tensor of every worker, about 200 bytes each; all else is small.
constexpr int64_t kProofBytesMax = 256 * kMiB;
constexpr int64_t kReplyBytesMax = 4 * kMiB;
constexpr size_t kWorkersMax = 65536;
// Between questions while it prepares: short against a preparation, and little work for the engine.
constexpr Duration kAskAgain = milliseconds(100);

// The place of `word` in a list that follows an enum.
template <typename Enum, size_t N>
Result<Enum> WordOf(const std::array<std::string_view, N>& words, std::string_view word) {
  const auto it = std::ranges::find(words, word);
  if (it != words.end()) return static_cast<Enum>(it - words.begin());
  return Error{Code::kInvalidData, "expected one of " + JoinNames({words.begin(), words.end()}) +
                                       ", found " + Quoted(word)};
}

template <typename Id>
Result<Id> IdOrNone(const Json& object, std::string_view field) {
  const std::string text = WC_TRY(JsonString(object, field));
  if (text.empty()) return Id{};
  return Id::Parse(text).With("field \"" + std::string(field) + "\"");
}

Result<EngineStatus> OneStatus(const Json& json) {
  EngineStatus status;
  status.state = WC_TRY(WordOf<EngineState>(kStates, WC_TRY(JsonString(json, "state"))));
  status.incarnation = OneLine(WC_TRY(JsonString(json, "incarnation")));
  status.version = WC_TRY(IdOrNone<VersionUid>(json, "version"));
  status.number = WC_TRY(JsonInt(json, "number"));
  status.preparing = WC_TRY(JsonBool(json, "preparing"));
  status.prepared = WC_TRY(IdOrNone<VersionUid>(json, "prepared"));
  status.reason = OneLine(WC_TRY(JsonString(json, "reason")));
  status.done = WC_TRY(JsonInt(json, "done"));
  status.total = WC_TRY(JsonInt(json, "total"));
  return status;
}

// The answers in the workers' order. Each says who it is and how many there are: one that is
// missing must not pass for an engine that is whole.
Result<std::vector<const Json*>> InOrder(const Json& results) {
  if (results.empty() || results.size() > kWorkersMax) {
    return Error{Code::kInvalidData, std::to_string(results.size()) + " workers answered"};
  }
  std::vector<const Json*> workers(results.size(), nullptr);
  for (const Json& result : results) {
    const int64_t worker = WC_TRY(JsonInt(result, "worker"));
    if (worker < 0 || worker >= static_cast<int64_t>(results.size()) ||
        workers[static_cast<size_t>(worker)] != nullptr) {
      return Error{Code::kInvalidData, std::to_string(results.size()) +
                                           " workers answered, one of them as worker " +
                                           std::to_string(worker)};
    }
    workers[static_cast<size_t>(worker)] = &result;
  }
  return workers;
}

// Which worker's state is that of the engine: the one that is farthest from being prepared.
int Rank(EngineState state) {
  constexpr std::array<int, 6> kRanks = {3, 2, 1, 0, 4, 5};  // in the order of EngineState
  return kRanks[static_cast<size_t>(state)];
}

// Several workers as one engine.
EngineStatus Joined(const std::vector<EngineStatus>& workers) {
  EngineStatus all = workers.front();
  bool one_version = true;
  for (size_t i = 1; i < workers.size(); ++i) {
    const EngineStatus& worker = workers[i];
    if (Rank(worker.state) > Rank(all.state)) all.state = worker.state;
    all.incarnation += "," + worker.incarnation;
    all.preparing = all.preparing || worker.preparing;
    one_version = one_version && worker.version == all.version;
    if (worker.prepared != all.prepared) all.prepared = {};
    if (!worker.reason.empty()) {
      all.reason += (all.reason.empty() ? "" : "; ") + worker.reason;
    }
    all.done += worker.done;
    all.total += worker.total;
  }
  all.reason = OneLine(all.reason);
  all.incarnation = OneLine(all.incarnation);
  if (!one_version) {
    all.state = std::max(all.state, EngineState::kUpdating);
    all.version = {};
    all.reason =
        "its workers serve different versions" + (all.reason.empty() ? "" : "; " + all.reason);
  }
  return all;
}

Result<WorkerProof> OneProof(const Json& json) {
  WorkerProof proof;
  proof.version = WC_TRY(IdOrNone<VersionUid>(json, "version"));
  for (const Json& row : *WC_TRY(JsonArray(json, "tensors"))) {
    const auto text = [&](size_t i) { return row[i].is_string(); };
    if (!row.is_array() || row.size() != 5 || !text(0) || !text(1) || !text(2) ||
        !row[3].is_number_integer() || !text(4)) {
      return Error{Code::kInvalidData,
                   "expected [name, how, digest, units, span], found " +
                       row.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 200)};
    }
    TensorProof tensor;
    tensor.name = row[0].get<std::string>();
    tensor.how = WC_TRY(WordOf<How>(kHows, row[1].get<std::string>()).With(tensor.name));
    tensor.partial.digest =
        WC_TRY(tensor::TensorDigest::ParseHex(row[2].get<std::string>()).With(tensor.name));
    tensor.partial.units = row[3].get<int64_t>();
    tensor.span = row[4].get<std::string>();
    if (tensor.partial.units < 0) {
      return Error{Code::kInvalidData, tensor.name + ": a negative count of units"};
    }
    proof.tensors.push_back(std::move(tensor));
  }
  return proof;
}

class VllmFace : public Face {
 public:
  VllmFace(std::string url, os::Clock& clock) : url_(std::move(url)), clock_(clock) {}

  const std::string& url() const override { return url_; }

  Status Init(const InitInfo& info, Duration timeout) override {
    const Json body = {{"init_info",
                        {{"catalog", info.catalog},
                         {"run", info.run},
                         {"image", info.image},
                         {"seed", info.seed},
                         {"store", info.store},
                         {"threads", info.threads},
                         {"keep_canonical", info.keep_canonical}}}};
    const os::Deadline deadline(clock_, timeout);
    WC_TRY(Post("/init_weight_transfer_engine", body.dump(), timeout));
    return Outcome(deadline.left());
  }

  Result<EngineStatus> Ask(Duration timeout) override {
    const os::Deadline deadline(clock_, timeout);
    EngineStatus status = WC_TRY(AskWith({{"op", "status"}}, timeout));
    status.paused = WC_TRY(IsPaused(deadline.left()));
    if (status.paused && step_ == Step::kServing) step_ = Step::kPaused;
    return status;
  }

  Status Prepare(const VersionUid& version, const RoundUid& round, Duration timeout) override {
    WC_TRY(Require("prepare", {Step::kServing, Step::kPaused}));
    const os::Deadline deadline(clock_, timeout);
    prepared_ = {};
    EngineStatus status = WC_TRY(
        AskWith({{"op", "prepare"}, {"version", version.hex()}, {"round", round.hex()}}, timeout));
    const std::string incarnation = status.incarnation;
    for (;;) {
      if (status.prepared == version) {
        prepared_ = version;
        return Ok();
      }
      if (status.incarnation != incarnation) {
        return Error{Code::kUnavailable, url_ + ": restarted while it prepared"};
      }
      if (!status.preparing && !status.reason.empty()) {
        return ErrorOfText(status.reason).With(url_ + ": prepare");
      }
      if (deadline.passed()) {
        return Error{Code::kDeadlineExceeded, url_ + ": prepare: " + std::to_string(status.done) +
                                                  " of " + std::to_string(status.total) +
                                                  " bytes are ready after " +
                                                  std::to_string(ToSeconds(timeout)) + " s"};
      }
      clock_.SleepFor(std::min(kAskAgain, deadline.left()));
      // The last question gets a little time, too.
      status = WC_TRY(AskWith({{"op", "status"}}, std::max<Duration>(deadline.left(), seconds(1))));
    }
  }

  Status Pause(PauseMode mode, Duration timeout) override {
    WC_TRY(Require("pause", {Step::kServing, Step::kPaused}));
    const os::Deadline deadline(clock_, timeout);
    mode_ = mode;
    step_ = Step::kPaused;  // also if it fails: then nobody knows
    WC_TRY(Post(
        std::string("/pause?mode=") + kPauseModes[static_cast<size_t>(mode)] + "&clear_cache=true",
        "", timeout));
    return ExpectPaused(true, deadline.left());
  }

  Status Flush(Duration timeout) override {
    WC_TRY(Require("flush", {Step::kPaused}));
    // Requests that were kept hold their blocks: they are computed again, with the new weights.
    const std::string body =
        WC_TRY(Post(mode_ == PauseMode::kKeep ? "/reset_prefix_cache?reset_running_requests=true"
                                              : "/reset_prefix_cache",
                    "", timeout));
    // Servers differ in whether they say so.
    const Result<Json> json = ParseJson(body);
    if (!json.ok() || !json->is_object() || json->value("success", Json(true)) != Json(false)) {
      return Ok();
    }
    return Error{Code::kConflict, url_ + ": the prefix cache is in use and was not reset"};
  }

  Status Start(Duration timeout) override {
    WC_TRY(Require("start", {Step::kPaused}));
    const os::Deadline deadline(clock_, timeout);
    // vLLM keeps an update open until it is finished, also when whoever began it is dead.
    WC_TRY(Rpc({{"op", "abandon"}}, timeout, kReplyBytesMax));
    WC_TRY(Post("/start_weight_update", "", deadline.left()));
    WC_TRY(Outcome(deadline.left()));
    step_ = Step::kStarted;
    return Ok();
  }

  Status Update(const VersionUid& version, const RoundUid& round, Duration timeout) override {
    WC_TRY(Require("update", {Step::kStarted}));
    if (prepared_ != version) {
      return Error{Code::kConflict,
                   url_ + ": update: version " + version.hex() + " was not prepared"};
    }
    const Json body = {{"update_info", {{"version", version.hex()}, {"round", round.hex()}}}};
    const os::Deadline deadline(clock_, timeout);
    step_ = Step::kPaused;  // an error ends the update
    WC_TRY(Post("/update_weights", body.dump(), timeout));
    WC_TRY(Outcome(deadline.left()));
    step_ = Step::kUpdated;
    return Ok();
  }

  Status Finish(int64_t number, Duration timeout) override {
    WC_TRY(Require("finish", {Step::kUpdated}));
    const Json body = {{"weight_version", std::to_string(number)}};
    step_ = Step::kPaused;
    prepared_ = {};
    const os::Deadline deadline(clock_, timeout);
    WC_TRY(Post("/finish_weight_update", body.dump(), timeout));
    return Outcome(deadline.left());
  }

  Result<std::vector<WorkerProof>> Prove(ProofScope scope, Duration timeout) override {
    WC_TRY(Require("prove", {Step::kServing, Step::kPaused}));
    const Json request = {{"op", "prove"},
                          {"scope", scope == ProofScope::kAll ? "all" : "touched"}};
    const Json reply = WC_TRY(Rpc(request, timeout, kProofBytesMax));
    std::vector<WorkerProof> proofs;
    for (const Json* worker : WC_TRY(Workers(reply))) {
      proofs.push_back(WC_TRY(OneProof(*worker).With(url_)));
    }
    return proofs;
  }

  Status Label(int64_t number, Duration timeout) override {
    WC_TRY(Require("label", {Step::kServing, Step::kPaused}));
    const Json body = {{"new_version", std::to_string(number)}};
    WC_TRY(Post("/update_weight_version", body.dump(), timeout));
    return Ok();
  }

  Status Resume(Duration timeout) override {
    WC_TRY(Require("resume", {Step::kPaused}));
    const os::Deadline deadline(clock_, timeout);
    WC_TRY(Post("/resume", "", timeout));
    WC_TRY(ExpectPaused(false, deadline.left()));
    step_ = Step::kServing;
    return Ok();
  }

 private:
  enum class Step : uint8_t { kServing, kPaused, kStarted, kUpdated };
  static constexpr std::array<const char*, 4> kSteps = {"serving", "paused", "in an update",
                                                        "at the end of an update"};

  Status Require(const char* call, std::initializer_list<Step> steps) {
    if (std::ranges::find(steps, step_) != steps.end()) return Ok();
    return Error{Code::kConflict, url_ + ": " + call + ": the engine is " +
                                      kSteps[static_cast<size_t>(step_)] + ", expected " +
                                      kSteps[static_cast<size_t>(*steps.begin())]};
  }

  Result<std::string> Post(const std::string& path, std::string body, Duration timeout,
                           int64_t reply_bytes_max = kReplyBytesMax) {
    return Call({.method = "POST",
                 .url = url_ + path,
                 .body = std::move(body),
                 .timeout = timeout,
                 .reply_bytes_max = reply_bytes_max});
  }

  Result<Json> Rpc(const Json& request, Duration timeout, int64_t reply_bytes_max) {
    const Json body = {{"method", "weightcast"}, {"args", Json::array({request})}};
    // Without vLLM's own "timeout": an answer that comes after it would be taken for that of the
    // next call, whoever makes it.
    Json reply =
        WC_TRY(ParseJson(WC_TRY(Post("/collective_rpc", body.dump(), timeout, reply_bytes_max)))
                   .With(url_ + "/collective_rpc"));
    const Json* results = WC_TRY(JsonArray(reply, "results").With(url_ + "/collective_rpc"));
    for (const Json& worker : *results) {
      if (worker.is_object() && worker.contains("error")) {
        return ErrorOfText(WC_TRY(JsonString(worker, "error"))).With(url_);
      }
    }
    return reply;
  }

  // What vLLM's own routes do not say: with several workers an error that one of them raises would
  // leave the others' answers for the next call, so they keep it and are asked.
  Status Outcome(Duration timeout) {
    WC_TRY(Rpc({{"op", "outcome"}}, std::max<Duration>(timeout, seconds(1)), kReplyBytesMax));
    return Ok();
  }

  // Pointers into `reply`.
  Result<std::vector<const Json*>> Workers(const Json& reply) {
    const Json* results = WC_TRY(JsonArray(reply, "results").With(url_ + "/collective_rpc"));
    return InOrder(*results).With(url_);
  }

  Result<EngineStatus> AskWith(const Json& request, Duration timeout) {
    const Json reply = WC_TRY(Rpc(request, timeout, kReplyBytesMax));
    std::vector<EngineStatus> workers;
    for (const Json* worker : WC_TRY(Workers(reply))) {
      workers.push_back(WC_TRY(OneStatus(*worker).With(url_)));
      const int64_t count = WC_TRY(JsonInt(*worker, "workers").With(url_));
      if (count != std::ssize(*WC_TRY(JsonArray(reply, "results")))) {
        return Error{Code::kInvalidData,
                     url_ + ": not all of " + std::to_string(count) + " workers answered"};
      }
    }
    return Joined(workers);
  }

  Result<bool> IsPaused(Duration timeout) {
    const std::string where = url_ + "/is_paused";
    const Json json = WC_TRY(
        ParseJson(WC_TRY(Call({.method = "GET", .url = where, .timeout = timeout}))).With(where));
    return JsonBool(json, "is_paused").With(where);
  }

  // An engine that says that it is paused, and is not, would serve a mix.
  Status ExpectPaused(bool paused, Duration timeout) {
    if (WC_TRY(IsPaused(timeout)) == paused) return Ok();
    return Error{Code::kConflict, url_ + (paused ? ": was paused and is not paused"
                                                 : ": was resumed and is still paused")};
  }

  const std::string url_;
  os::Clock& clock_;
  Step step_ = Step::kServing;
  PauseMode mode_ = PauseMode::kWait;
  VersionUid prepared_;
};

}  // namespace

std::string_view StateName(EngineState state) { return kStates[static_cast<size_t>(state)]; }

std::unique_ptr<Face> NewVllmFace(const std::string& url, os::Clock& clock) {
  return std::make_unique<VllmFace>(url.ends_with('/') ? url.substr(0, url.size() - 1) : url,
                                    clock);
}

}  // namespace weightcast::engine
