// The face against a server that plays an engine with two workers.
#include "engine/vllm.h"

#include <gmock/gmock.h>

#include <map>
#include <utility>

#include "engine/http_testing.h"

namespace weightcast::engine {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr Duration kSoon = seconds(5);
const std::string kV1 = "11111111111111111111111111111111";
const std::string kV2 = "22222222222222222222222222222222";

VersionUid Uid(const std::string& text) {
  auto uid = VersionUid::Parse(text);
  WC_CHECK(uid.ok());
  return *uid;
}

std::string Worker(int worker, const std::string& state, const std::string& version = kV1,
                   const std::string& prepared = "", const std::string& reason = "") {
  return R"({"worker":)" + std::to_string(worker) + R"(,"workers":2,"incarnation":"i)" +
         std::to_string(worker) + R"(","state":")" + state + R"(","version":")" + version +
         R"(","number":1,"preparing":)" + (state == "preparing" ? "true" : "false") +
         R"(,"prepared":")" + prepared + R"(","reason":")" + reason + R"(","done":5,"total":10})";
}
std::string Results(const std::string& a, const std::string& b) {
  return R"({"results":[)" + a + "," + b + "]}";
}

class VllmTest : public testing::Test {
 protected:
  VllmTest()
      : server_([this](const std::string& line, const std::string& body) {
          return Answer(line, body);
        }),
        face_(NewVllmFace(server_.url() + "/", os::RealWorld().clock)) {}

  std::string Answer(const std::string& line, const std::string& body) {
    std::string path = line.substr(line.find('/'));
    path = path.substr(0, path.find('?'));
    if (path == broken_) return TestServer::Reply(500, R"({"error":{"message":"no"}})");
    if (path == "/start_weight_update" && std::exchange(open_, true)) {
      return TestServer::Reply(500, R"({"error":{"message":"an update is already active"}})");
    }
    if (path == "/finish_weight_update") open_ = false;
    if (path == "/pause") paused_ = pauses_;
    if (path == "/resume") paused_ = false;
    if (path == "/is_paused") {
      return TestServer::Reply(200,
                               std::string(R"({"is_paused":)") + (paused_ ? "true}" : "false}"));
    }
    if (body.contains(R"("op":"abandon")")) open_ = false;
    if (body.contains(R"("op":"abandon")") || body.contains(R"("op":"outcome")")) {
      return TestServer::Reply(200, outcome_);
    }
    if (path == "/collective_rpc") {
      const std::string reply = rpc_.front();
      if (rpc_.size() > 1) rpc_.erase(rpc_.begin());
      return TestServer::Reply(200, reply);
    }
    return TestServer::Reply(200, flush_);
  }

  // The server runs on its own thread; each call ends before the next field is set.
  std::string broken_;
  std::string flush_ = R"({"success":true})";
  bool paused_ = false;
  bool pauses_ = true;
  bool open_ = false;  // an update is
  std::string outcome_ = R"({"results":[{"worker":0},{"worker":1}]})";

  // But for those after every step that ask how it went.
  std::vector<std::string> Requests() {
    std::vector<std::string> all = server_.requests();
    std::erase_if(all, [](const std::string& r) { return r.contains(R"("op":"outcome")"); });
    return all;
  }

  std::vector<std::string> rpc_ = {Results(Worker(0, "serving"), Worker(1, "serving"))};
  TestServer server_;
  std::unique_ptr<Face> face_;
  const RoundUid round_ = RoundUid{{7}};
};

TEST_F(VllmTest, SpeaksTheProtocol) {
  rpc_ = {Results(Worker(0, "preparing"), Worker(1, "prepared", kV1, kV2)),
          Results(Worker(0, "prepared", kV1, kV2), Worker(1, "prepared", kV1, kV2)),
          R"({"results":[{"worker":0,"version":"","tensors":[]}]})"};
  EXPECT_EQ(Text(face_->Init({"sqlite:c", "policy", "/i", "", "file:/s", 2}, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Prepare(Uid(kV2), round_, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Pause(PauseMode::kKeep, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Flush(kSoon)), "ok");
  EXPECT_EQ(Text(face_->Start(kSoon)), "ok");
  EXPECT_EQ(Text(face_->Update(Uid(kV2), round_, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Finish(7, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Prove(ProofScope::kTouched, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Resume(kSoon)), "ok");
  const std::string round = round_.hex();
  EXPECT_THAT(
      Requests(),
      ElementsAre(
          R"(POST /init_weight_transfer_engine {"init_info":{"catalog":"sqlite:c","run":"policy",)"
          R"("image":"/i","seed":"","store":"file:/s","threads":2,"keep_canonical":false}})",
          R"(POST /collective_rpc {"method":"weightcast","args":[{"op":"prepare","version":")" +
              kV2 + R"(","round":")" + round + R"("}]})",
          AllOf(StartsWith(R"(POST /collective_rpc {"method":"weightcast")"),
                HasSubstr(R"([{"op":"status"}])")),
          "POST /pause?mode=keep&clear_cache=true", "GET /is_paused",
          "POST /reset_prefix_cache?reset_running_requests=true",
          R"(POST /collective_rpc {"method":"weightcast","args":[{"op":"abandon"}]})",
          "POST /start_weight_update",
          R"(POST /update_weights {"update_info":{"version":")" + kV2 + R"(","round":")" + round +
              R"("}})",
          R"(POST /finish_weight_update {"weight_version":"7"})",
          HasSubstr(R"([{"op":"prove","scope":"touched"}])"), "POST /resume", "GET /is_paused"));
}

TEST_F(VllmTest, AStatusIsThatOfAllWorkers) {
  struct Case {
    std::string a;
    std::string b;
    EngineState expected;
    std::string version = kV1;
  };
  const Case cases[] = {
      {Worker(0, "new", ""), Worker(1, "new", ""), EngineState::kNew, ""},
      {Worker(0, "serving"), Worker(1, "serving"), EngineState::kServing},
      {Worker(0, "prepared"), Worker(1, "preparing"), EngineState::kPreparing},
      {Worker(0, "preparing"), Worker(1, "serving", kV1, "", "why"), EngineState::kServing},
      {Worker(0, "serving"), Worker(1, "updating"), EngineState::kUpdating},
      {Worker(0, "fenced"), Worker(1, "updating"), EngineState::kFenced},
      {Worker(0, "serving", kV1), Worker(1, "serving", kV2), EngineState::kUpdating, ""},
      {Worker(1, "fenced"), Worker(0, "serving"), EngineState::kFenced},
  };
  for (const Case& c : cases) {
    rpc_ = {Results(c.a, c.b)};
    const auto status = face_->Ask(kSoon);
    ASSERT_EQ(Text(status), "ok");
    EXPECT_EQ(StateName(status->state), StateName(c.expected));
    EXPECT_EQ(status->version, c.version.empty() ? VersionUid{} : Uid(c.version));
    EXPECT_EQ(status->incarnation, "i0,i1");
    EXPECT_EQ(std::tuple(status->done, status->total), std::tuple(10, 20));
  }
}

TEST_F(VllmTest, AnswersThatAreNotOnesOfAllWorkersAreRefused) {
  const char* cases[] = {
      "",
      "[]",
      "{}",
      R"({"results":[]})",
      R"({"results":[{}]})",
      R"({"results":[5]})",
      R"({"results":["None"]})",
  };
  for (const char* reply : cases) {
    rpc_ = {reply};
    EXPECT_THAT(Text(face_->Ask(kSoon)), AllOf(StartsWith("invalid-data"), HasSubstr("http:")))
        << reply;
    EXPECT_THAT(Text(face_->Prove(ProofScope::kAll, kSoon)), StartsWith("invalid-data")) << reply;
  }
  rpc_ = {Results(Worker(0, "serving"), Worker(0, "serving"))};
  EXPECT_THAT(Text(face_->Ask(kSoon)), HasSubstr("as worker 0"));
  rpc_ = {R"({"results":[)" + Worker(0, "serving") + "]}"};
  EXPECT_THAT(Text(face_->Ask(kSoon)), HasSubstr("not all of 2 workers"));
  rpc_ = {Results(Worker(0, "dreaming"), Worker(1, "serving"))};
  EXPECT_THAT(Text(face_->Ask(kSoon)), HasSubstr("dreaming"));
  rpc_ = {Results(Worker(0, "serving", "xyz"), Worker(1, "serving"))};
  EXPECT_THAT(Text(face_->Ask(kSoon)), StartsWith("invalid-data"));
}

TEST_F(VllmTest, ProofsAreRead) {
  const std::string digest = "000000000000000000000000000000ff";
  rpc_ = {R"({"results":[{"worker":1,"version":")" + kV2 + R"(","tensors":[]},{"worker":0,)" +
          R"("version":")" + kV1 + R"(","tensors":[["a","repacked",")" + digest +
          R"(",6,"0f"]]}]})"};
  const auto proofs = face_->Prove(ProofScope::kAll, kSoon);
  ASSERT_EQ(Text(proofs), "ok");
  ASSERT_EQ(proofs->size(), 2u);
  EXPECT_EQ((*proofs)[1].version, Uid(kV2));
  ASSERT_EQ((*proofs)[0].tensors.size(), 1u);
  const TensorProof& a = (*proofs)[0].tensors[0];
  EXPECT_EQ(std::tuple(a.name, a.how, a.span), std::tuple("a", How::kRepacked, "0f"));
  EXPECT_EQ(a.partial, (tensor::Partial{{255, 0}, 6}));
  for (const std::string& row :
       {R"(["a","live",")" + digest + R"(",-1,"0f"])", R"(["a","seen",")" + digest + R"(",1,""])",
        std::string(R"(["a","live","zz",1,""])"), std::string(R"(["a","live"])"),
        std::string(R"("row")"), R"([null,"live",")" + digest + R"(",1,""])"}) {
    rpc_ = {R"({"results":[{"worker":0,"version":"","tensors":[)" + row + "]}]}"};
    EXPECT_THAT(Text(face_->Prove(ProofScope::kAll, kSoon)), StartsWith("invalid-data")) << row;
  }
}

TEST_F(VllmTest, AFailedPreparationHasItsReasonAndCode) {
  rpc_ = {Results(Worker(0, "preparing"), Worker(1, "preparing")),
          Results(Worker(0, "serving", kV1, "", "weightcast resource-exhausted: disk full"),
                  Worker(1, "preparing")),
          Results(Worker(0, "serving", kV1, "", "weightcast resource-exhausted: disk full"),
                  Worker(1, "prepared", kV1, kV2))};
  EXPECT_THAT(
      Text(face_->Prepare(Uid(kV2), round_, kSoon)),
      AllOf(StartsWith("resource-exhausted"), HasSubstr(server_.url()), HasSubstr("disk full")));
}

TEST_F(VllmTest, AFencedEnginePrepares) {
  const auto fenced = [](const std::string& prepared, const std::string& reason, bool preparing) {
    std::string workers[2];
    for (int w = 0; w < 2; ++w) {
      workers[w] = Worker(w, preparing ? "preparing" : "fenced", "", prepared, reason);
      if (preparing) workers[w].replace(workers[w].find(R"("preparing")"), 11, R"("fenced")");
    }
    return Results(workers[0], workers[1]);
  };
  rpc_ = {fenced("", "half written", true), fenced("", "half written", true),
          fenced(kV2, "half written", false)};
  EXPECT_EQ(Text(face_->Prepare(Uid(kV2), round_, kSoon)), "ok");
  rpc_ = {fenced("", "half written", true),
          fenced("", "half written; weightcast data-loss: prepare 7", false)};
  EXPECT_THAT(Text(face_->Prepare(Uid(kV2), round_, kSoon)), StartsWith("data-loss"));
}

TEST_F(VllmTest, AnUpdateThatNobodyFinishedIsEnded) {
  open_ = true;
  EXPECT_EQ(Text(face_->Pause(PauseMode::kWait, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Start(kSoon)), "ok");
  EXPECT_THAT(
      Requests(),
      ElementsAre("POST /pause?mode=wait&clear_cache=true", "GET /is_paused",
                  R"(POST /collective_rpc {"method":"weightcast","args":[{"op":"abandon"}]})",
                  "POST /start_weight_update"));
}

TEST_F(VllmTest, AnErrorThatAWorkerKeptIsTold) {
  EXPECT_EQ(Text(face_->Pause(PauseMode::kWait, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Start(kSoon)), "ok");
  outcome_ = R"({"results":[{"worker":0},{"worker":1,"error":"weightcast data-loss: rotten"}]})";
  EXPECT_THAT(Text(face_->Init({}, kSoon)), AllOf(StartsWith("data-loss"), HasSubstr("rotten")));
  EXPECT_THAT(Text(face_->Start(kSoon)), StartsWith("conflict"));
}

TEST_F(VllmTest, APreparationEndsByItsTimeout) {
  rpc_ = {Results(Worker(0, "preparing"), Worker(1, "preparing"))};
  EXPECT_THAT(Text(face_->Prepare(Uid(kV2), round_, milliseconds(250))),
              AllOf(StartsWith("deadline-exceeded"), HasSubstr("10 of 20 bytes")));
}

TEST_F(VllmTest, APreparationDoesNotOutliveTheEngine) {
  std::string other = Worker(0, "serving");
  other.replace(other.find("i0"), 2, "i9");
  rpc_ = {Results(Worker(0, "preparing"), Worker(1, "preparing")),
          Results(other, Worker(1, "serving"))};
  EXPECT_THAT(Text(face_->Prepare(Uid(kV2), round_, kSoon)),
              AllOf(StartsWith("unavailable"), HasSubstr("restarted")));
}

TEST_F(VllmTest, TheOrderIsEnforced) {
  const auto update = [&] { return Text(face_->Update(Uid(kV2), round_, kSoon)); };
  EXPECT_THAT(Text(face_->Start(kSoon)),
              AllOf(StartsWith("conflict"), HasSubstr("is serving, expected paused")));
  EXPECT_THAT(Text(face_->Flush(kSoon)), StartsWith("conflict"));
  EXPECT_THAT(update(), StartsWith("conflict"));
  EXPECT_THAT(Text(face_->Finish(1, kSoon)), StartsWith("conflict"));
  EXPECT_THAT(Text(face_->Resume(kSoon)), StartsWith("conflict"));
  EXPECT_TRUE(server_.requests().empty()) << "what is out of order reaches nobody";
  EXPECT_EQ(Text(face_->Pause(PauseMode::kWait, kSoon)), "ok");
  EXPECT_THAT(update(), StartsWith("conflict"));
  EXPECT_EQ(Text(face_->Start(kSoon)), "ok");
  EXPECT_THAT(Text(face_->Start(kSoon)), StartsWith("conflict"));
  EXPECT_THAT(update(), AllOf(StartsWith("conflict"), HasSubstr("was not prepared")));
  EXPECT_THAT(Text(face_->Prove(ProofScope::kAll, kSoon)), StartsWith("conflict"));
  EXPECT_THAT(Text(face_->Resume(kSoon)), StartsWith("conflict"));
}

TEST_F(VllmTest, AnErrorInAnUpdateEndsIt) {
  rpc_ = {Results(Worker(0, "prepared", kV1, kV2), Worker(1, "prepared", kV1, kV2))};
  EXPECT_EQ(Text(face_->Prepare(Uid(kV2), round_, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Pause(PauseMode::kWait, kSoon)), "ok");
  EXPECT_EQ(Text(face_->Start(kSoon)), "ok");
  broken_ = "/update_weights";
  EXPECT_THAT(Text(face_->Update(Uid(kV2), round_, kSoon)),
              AllOf(StartsWith("internal"), HasSubstr("HTTP 500: no")));
  EXPECT_THAT(Text(face_->Finish(1, kSoon)), StartsWith("conflict"));
  EXPECT_EQ(Text(face_->Resume(kSoon)), "ok");
}

TEST_F(VllmTest, AnEngineThatOnlySaysItIsPausedIsFound) {
  pauses_ = false;
  EXPECT_THAT(Text(face_->Pause(PauseMode::kAbort, kSoon)),
              AllOf(StartsWith("conflict"), HasSubstr("is not paused")));
  EXPECT_EQ(Text(face_->Resume(kSoon)), "ok") << "in case it was";
}

TEST_F(VllmTest, AnEngineThatIsFoundPausedMayBeResumed) {
  paused_ = true;
  const auto status = face_->Ask(kSoon);
  ASSERT_EQ(Text(status), "ok");
  EXPECT_TRUE(status->paused);
  EXPECT_EQ(Text(face_->Resume(kSoon)), "ok");
}

TEST_F(VllmTest, ACacheThatWasNotResetIsAnError) {
  EXPECT_EQ(Text(face_->Pause(PauseMode::kWait, kSoon)), "ok");
  flush_ = "";
  EXPECT_EQ(Text(face_->Flush(kSoon)), "ok") << "older servers say nothing";
  flush_ = R"({"success":false})";
  EXPECT_THAT(Text(face_->Flush(kSoon)), StartsWith("conflict"));
}

}  // namespace
}  // namespace weightcast::engine
