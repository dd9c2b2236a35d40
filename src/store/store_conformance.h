// What store.h promises, as named cases that every store runs. For tests only.
//
//   class MyStores : public testing::TestWithParam<std::tuple<StoreProvider, StoreCase>> {};
//   TEST_P(MyStores, KeepPromises) { RunStoreCase(GetParam()); }
//   INSTANTIATE_TEST_SUITE_P(Every, MyStores, testing::Combine(testing::Values(...),
//                            testing::ValuesIn(StoreCases())), StoreCaseName);
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/units.h"
#include "store/store.h"

namespace weightcast::store {

// A store of its own, empty at first, seen by two clients (which may be one object where a store
// cannot be opened twice).
class StoreBed {
 public:
  virtual ~StoreBed() = default;
  virtual Store& store() = 0;
  virtual Store& other() = 0;
};

// How stores differ, as data.
struct StoreTraits {
  // Whether "a" and "a/b" may both be keys.
  bool nested_keys = true;
  // Whether a List shows an object as soon as its Put answered.
  bool lists_at_once = true;
};

struct StoreProvider {
  std::string name;
  std::function<std::unique_ptr<StoreBed>()> make;
  StoreTraits traits = {};
};

struct StoreCase {
  std::string name;
  void (*run)(StoreBed& bed, const StoreTraits& traits);
};

inline void PrintTo(const StoreProvider& provider, std::ostream* out) { *out << provider.name; }
inline void PrintTo(const StoreCase& store_case, std::ostream* out) { *out << store_case.name; }

namespace store_cases {

// Bytes that differ from their neighbours and from those of another seed.
inline Bytes Pattern(size_t size, uint32_t seed = 1) {
  Bytes bytes(size);
  uint32_t x = seed * 2'654'435'761u + 1;
  for (uint8_t& byte : bytes) {
    x = x * 1'664'525u + 1'013'904'223u;
    byte = static_cast<uint8_t>(x >> 24);
  }
  return bytes;
}

inline Code CodeOf(const Status& status) {
  EXPECT_FALSE(status.ok());
  return status.ok() ? Code::kInternal : status.error().code;
}
template <typename T>
Code CodeOf(const Result<T>& result) {
  return CodeOf(result.ok() ? Ok() : Status(result.error()));
}

inline void PutOk(Store& store, std::string_view key, ByteSpan bytes) {
  const Status status = store.Put(key, bytes);
  EXPECT_TRUE(status.ok()) << key << ": " << status.error().message;
}

// The object's bytes; a failure gives the error's text instead.
inline Bytes Whole(Store& store, std::string_view key) {
  Result<Bytes> bytes = store.GetAll(key, kMiB * 64);
  if (bytes.ok()) return std::move(bytes).value();
  const ByteSpan message = AsBytes(bytes.error().message);
  return Bytes(message.begin(), message.end());
}

inline std::vector<std::string> Keys(Store& store, std::string_view prefix = "") {
  std::vector<std::string> keys;
  const Status status = store.List(prefix, [&](const ObjectInfo& object) {
    keys.push_back(object.key);
    return Ok();
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
  std::sort(keys.begin(), keys.end());
  return keys;
}

inline void RoundTripsEverySize(StoreBed& bed, const StoreTraits&) {
  for (const size_t size : std::vector<size_t>{0, 1, 2, 4095, 4096, 4097, 100'000, 3'000'000}) {
    const std::string key = "sizes/" + std::to_string(size);
    PutOk(bed.store(), key, Pattern(size));
    EXPECT_EQ(bed.store().Size(key).value(), static_cast<int64_t>(size));
    EXPECT_TRUE(Whole(bed.store(), key) == Pattern(size)) << size;
  }
}

inline void RangesAreExact(StoreBed& bed, const StoreTraits&) {
  const Bytes whole = Pattern(20);
  PutOk(bed.store(), "o", whole);
  for (size_t offset = 0; offset <= whole.size(); ++offset) {
    for (size_t length = 0; offset + length <= whole.size(); ++length) {
      Bytes out(length);
      ASSERT_TRUE(bed.store().Get("o", static_cast<int64_t>(offset), out).ok());
      EXPECT_TRUE(std::equal(out.begin(), out.end(), whole.begin() + static_cast<int64_t>(offset)));
    }
  }
}

inline void ReadsPastTheEndAreDataLoss(StoreBed& bed, const StoreTraits&) {
  PutOk(bed.store(), "o", Pattern(10));
  struct Range {
    int64_t offset;
    size_t length;
  };
  for (const Range range : {Range{0, 11}, Range{10, 1}, Range{11, 0}, Range{int64_t{1} << 62, 1}}) {
    Bytes out(range.length);
    const Status status = bed.store().Get("o", range.offset, out);
    EXPECT_EQ(CodeOf(status), Code::kDataLoss) << range.offset << " + " << range.length;
    if (status.ok()) continue;
    EXPECT_THAT(status.error().message, testing::HasSubstr("object o: has 10 bytes"));
  }
}

inline void WhatIsNotThereIsNotFound(StoreBed& bed, const StoreTraits&) {
  PutOk(bed.store(), "a/b/c", Pattern(10));
  Bytes out(1);
  for (const char* key : {"x", "a", "a/b", "a/b/x", "a/b/cc", "a/b/c/d"}) {
    EXPECT_EQ(CodeOf(bed.store().Get(key, 0, out)), Code::kNotFound) << key;
    EXPECT_EQ(CodeOf(bed.store().Size(key)), Code::kNotFound) << key;
    EXPECT_EQ(CodeOf(bed.store().GetAll(key, 100)), Code::kNotFound) << key;
    EXPECT_TRUE(bed.store().Delete(key).ok()) << key;
  }
  EXPECT_TRUE(Whole(bed.store(), "a/b/c") == Pattern(10));
  EXPECT_THAT(bed.store().Size("x").error().message, testing::HasSubstr("object x: not there"));
}

inline void PutsAreCreateOnly(StoreBed& bed, const StoreTraits&) {
  PutOk(bed.store(), "o", Pattern(10, 1));
  const Status again = bed.store().Put("o", Pattern(20, 2));
  EXPECT_EQ(CodeOf(again), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(bed.other().Put("o", Pattern(10, 1))), Code::kAlreadyExists);
  auto upload = bed.store().StartUpload("o", 0);
  if (upload.ok()) {  // a store may refuse now or at the end
    EXPECT_TRUE((*upload)->Append(Pattern(5)).ok());
    EXPECT_EQ(CodeOf((*upload)->Commit()), Code::kAlreadyExists);
  } else {
    EXPECT_EQ(upload.error().code, Code::kAlreadyExists);
  }
  EXPECT_TRUE(Whole(bed.store(), "o") == Pattern(10, 1));
}

inline void OneOfManyWritersWins(StoreBed& bed, const StoreTraits&) {
  for (int round = 0; round < 5; ++round) {
    const std::string key = "deep/" + std::to_string(round) + "/o";
    std::atomic<int> winner = -1;
    std::atomic<int> refused = 0;
    std::vector<std::thread> writers;
    for (int i = 0; i < 6; ++i) {
      writers.emplace_back([&, i] {
        Store& store = i % 2 == 0 ? bed.store() : bed.other();
        const Status status = store.Put(key, Pattern(5000, static_cast<uint32_t>(i)));
        if (status.ok()) {
          EXPECT_EQ(winner.exchange(i), -1) << "two winners";
        }
        if (!status.ok() && status.error().code == Code::kAlreadyExists) ++refused;
      });
    }
    for (std::thread& writer : writers) writer.join();
    ASSERT_GE(winner.load(), 0);
    EXPECT_EQ(refused.load(), 5);
    EXPECT_TRUE(Whole(bed.other(), key) == Pattern(5000, static_cast<uint32_t>(winner.load())));
  }
}

inline void UploadsAppearWhenCommittedAndWhole(StoreBed& bed, const StoreTraits& traits) {
  const Bytes whole = Pattern(300'000);
  const auto upload = bed.store().StartUpload("a/o", 1000).value();  // the hint is only a hint
  for (size_t at = 0; at < whole.size(); at += 65'537) {
    const size_t length = std::min<size_t>(65'537, whole.size() - at);
    ASSERT_TRUE(upload->Append(ByteSpan(whole).subspan(at, length)).ok());
    ASSERT_TRUE(upload->Append({}).ok());
    EXPECT_EQ(CodeOf(bed.store().Size("a/o")), Code::kNotFound);
    EXPECT_THAT(Keys(bed.other()), testing::IsEmpty());
  }
  ASSERT_TRUE(upload->Commit().ok());
  EXPECT_TRUE(Whole(bed.other(), "a/o") == whole);
  if (traits.lists_at_once) {
    EXPECT_THAT(Keys(bed.other()), testing::ElementsAre("a/o"));
  }
}

inline void UploadsInterleave(StoreBed& bed, const StoreTraits&) {
  const auto a = bed.store().StartUpload("a", 0).value();
  const auto b = bed.store().StartUpload("b", 0).value();
  const auto empty = bed.store().StartUpload("empty", 0).value();
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(a->Append(Pattern(10, i)).ok());
    ASSERT_TRUE(b->Append(Pattern(10, 100 + i)).ok());
  }
  ASSERT_TRUE(b->Commit().ok());
  ASSERT_TRUE(a->Commit().ok());
  ASSERT_TRUE(empty->Commit().ok());
  Bytes out(10);
  ASSERT_TRUE(bed.store().Get("a", 10, out).ok());
  EXPECT_TRUE(out == Pattern(10, 1));
  ASSERT_TRUE(bed.store().Get("b", 20, out).ok());
  EXPECT_TRUE(out == Pattern(10, 102));
  EXPECT_EQ(bed.store().Size("empty").value(), 0);
}

inline void AbortedUploadsLeaveNothing(StoreBed& bed, const StoreTraits&) {
  {
    const auto upload = bed.store().StartUpload("a/o", 0).value();
    ASSERT_TRUE(upload->Append(Pattern(100)).ok());
  }
  EXPECT_EQ(CodeOf(bed.other().Size("a/o")), Code::kNotFound);
  EXPECT_THAT(Keys(bed.other()), testing::IsEmpty());
  PutOk(bed.store(), "a/o", Pattern(7));
}

// field_reports.md S8: keys that an encoder changes on the way.
inline void OddKeysRoundTrip_S8(StoreBed& bed, const StoreTraits& traits) {
  std::vector<std::string> keys = {"plus+plus",
                                   "a space",
                                   " leading",
                                   "trailing ",
                                   "100%",
                                   "%2F",
                                   "a=b&c=d",
                                   "me@host",
                                   "~tilde",
                                   "\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80",
                                   "quote\"'`",
                                   "back\\slash",
                                   "#hash?query",
                                   ".hidden",
                                   "...",
                                   "-dash",
                                   "a*b",
                                   "tab\tnewline\n",
                                   "x.tmp",
                                   "run:1/v+1/rank 0/part=%41@~",
                                   std::string(255, 'k'),
                                   std::string(250, 'd') + "/" + std::string(250, 'e') + "/.tmp"};
  for (size_t i = 0; i < keys.size(); ++i) {
    PutOk(bed.store(), keys[i], Pattern(20, static_cast<uint32_t>(i)));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(Whole(bed.other(), keys[i]) == Pattern(20, static_cast<uint32_t>(i))) << keys[i];
  }
  std::sort(keys.begin(), keys.end());
  if (traits.lists_at_once) {
    EXPECT_EQ(Keys(bed.other()), keys);
  }
  for (const std::string& key : keys) EXPECT_TRUE(bed.store().Delete(key).ok()) << key;
  EXPECT_THAT(Keys(bed.store()), testing::IsEmpty());
}

inline void BadKeysAreRefused_S8(StoreBed& bed, const StoreTraits&) {
  const std::vector<std::string> keys = {"",
                                         "/",
                                         "/a",
                                         "a/",
                                         "a//b",
                                         ".",
                                         "..",
                                         "../a",
                                         "a/..",
                                         "a/./b",
                                         "a/../../b",
                                         ".tmp",
                                         ".tmp/a",
                                         std::string("a\0b", 3),
                                         "\xff",
                                         "\xc0\xaf",
                                         "\xed\xa0\x80",
                                         "cut\xe2\x82",
                                         std::string(256, 'k'),
                                         std::string(200, 'a') + "/" + std::string(200, 'b') + "/" +
                                             std::string(200, 'c') + "/" + std::string(200, 'd') +
                                             "/" + std::string(221, 'e')};
  Bytes out(1);
  for (const std::string& key : keys) {
    EXPECT_EQ(CodeOf(bed.store().Put(key, out)), Code::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(bed.store().StartUpload(key, 1)), Code::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(bed.store().Get(key, 0, out)), Code::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(bed.store().Size(key)), Code::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(bed.store().Delete(key)), Code::kInvalidArgument) << key;
  }
  EXPECT_THAT(Keys(bed.store()), testing::IsEmpty());
}

inline void AKeyBelowAnObjectIsRefusedOrHeld(StoreBed& bed, const StoreTraits& traits) {
  PutOk(bed.store(), "a/b", Pattern(10));
  PutOk(bed.store(), "c", Pattern(10));
  for (const char* key : {"a", "c/d", "c/d/e"}) {
    const Status status = bed.store().Put(key, Pattern(5));
    if (traits.nested_keys) {
      EXPECT_TRUE(status.ok()) << key;
    } else {
      EXPECT_EQ(CodeOf(status), Code::kInvalidArgument) << key;
    }
  }
  EXPECT_TRUE(Whole(bed.store(), "a/b") == Pattern(10));
  EXPECT_TRUE(Whole(bed.store(), "c") == Pattern(10));
}

// field_reports.md S9: listing stopped at the first page of 1,000.
inline void ListsEveryOneOf2501Keys_S9(StoreBed& bed, const StoreTraits& traits) {
  std::vector<std::string> keys;
  for (int i = 0; i < 2501; ++i) {
    keys.push_back("v/" + std::to_string(i % 7) + "/" + std::to_string(i));
    PutOk(bed.store(), keys.back(), AsBytes("x"));
  }
  std::sort(keys.begin(), keys.end());
  if (!traits.lists_at_once) return;
  EXPECT_EQ(Keys(bed.other()), keys);
  EXPECT_EQ(Keys(bed.other(), "v/3/").size(), 357u);
}

inline void APrefixCutsAnywhere(StoreBed& bed, const StoreTraits& traits) {
  for (const char* key : {"a/b", "a/bc/d", "a/bc/e", "ab/c", "b", "a-b"}) {
    PutOk(bed.store(), key, AsBytes("x"));
  }
  if (!traits.lists_at_once) return;
  struct Case {
    const char* prefix;
    std::vector<std::string> keys;
  };
  const std::vector<Case> cases = {
      {"", {"a-b", "a/b", "a/bc/d", "a/bc/e", "ab/c", "b"}},
      {"a", {"a-b", "a/b", "a/bc/d", "a/bc/e", "ab/c"}},
      {"a/", {"a/b", "a/bc/d", "a/bc/e"}},
      {"a/b", {"a/b", "a/bc/d", "a/bc/e"}},
      {"a/b/", {}},
      {"a/bc", {"a/bc/d", "a/bc/e"}},
      {"a/bc/", {"a/bc/d", "a/bc/e"}},
      {"a/bc/e", {"a/bc/e"}},
      {"a/bc/ee", {}},
      {"abc", {}},
      {"z/y/x", {}},
      {"../", {}},
      {"/", {}},
      {"a//", {}},
  };
  for (const Case& c : cases) EXPECT_EQ(Keys(bed.store(), c.prefix), c.keys) << c.prefix;
}

inline void ListTellsSizesAndTimesAndStopsAtAnError(StoreBed& bed, const StoreTraits& traits) {
  PutOk(bed.store(), "a", Pattern(10));
  PutOk(bed.store(), "b", Pattern(20));
  if (!traits.lists_at_once) return;
  int64_t bytes = 0;
  ASSERT_TRUE(bed.store()
                  .List("",
                        [&](const ObjectInfo& object) {
                          bytes += object.bytes;
                          EXPECT_GT(object.modified_unix_ms, 1'600'000'000'000) << object.key;
                          return Ok();
                        })
                  .ok());
  EXPECT_EQ(bytes, 30);
  int visits = 0;
  const Status stopped = bed.store().List("", [&](const ObjectInfo&) -> Status {
    ++visits;
    return Error{Code::kAborted, "enough"};
  });
  EXPECT_EQ(CodeOf(stopped), Code::kAborted);
  EXPECT_EQ(visits, 1);
}

inline void ADeletedObjectIsGone(StoreBed& bed, const StoreTraits&) {
  PutOk(bed.store(), "v/1/a", Pattern(10));
  PutOk(bed.store(), "v/1/b", Pattern(10));
  ASSERT_TRUE(bed.store().Delete("v/1/a").ok());
  ASSERT_TRUE(bed.store().Delete("v/1/a").ok()) << "fine if it is not there";
  Bytes out(1);
  EXPECT_EQ(CodeOf(bed.other().Get("v/1/a", 0, out)), Code::kNotFound);
  EXPECT_TRUE(Whole(bed.other(), "v/1/b") == Pattern(10));
  ASSERT_TRUE(bed.store().Delete("v/1/b").ok());
  EXPECT_THAT(Keys(bed.store()), testing::IsEmpty());
  PutOk(bed.other(), "v/1/a", Pattern(11));
  EXPECT_TRUE(Whole(bed.store(), "v/1/a") == Pattern(11));
}

// field_reports.md X3: what lies in a shared store is seen whole or not at all, and whoever knows
// the key needs no list.
inline void ReadersSeeAllOrNothing_X3(StoreBed& bed, const StoreTraits&) {
  std::atomic<int> put = 0;
  constexpr int kObjects = 40;
  constexpr size_t kSize = 200'000;
  std::thread reader([&] {
    int whole = 0;
    while (whole < kObjects) {
      const int visible = put;
      const Result<Bytes> bytes = bed.other().GetAll("o/" + std::to_string(whole), kMiB);
      if (bytes.ok()) {
        EXPECT_TRUE(*bytes == Pattern(kSize, static_cast<uint32_t>(whole))) << "half an object";
        ++whole;
      } else {
        EXPECT_EQ(bytes.error().code, Code::kNotFound) << bytes.error().message;
        ASSERT_LE(visible, whole) << "put, but not visible";
      }
    }
  });
  for (int i = 0; i < kObjects; ++i) {
    PutOk(bed.store(), "o/" + std::to_string(i), Pattern(kSize, static_cast<uint32_t>(i)));
    put = i + 1;
  }
  reader.join();
}

inline void BoundsWhatIsReadWhole(StoreBed& bed, const StoreTraits&) {
  PutOk(bed.store(), "o", Pattern(10));
  EXPECT_TRUE(bed.store().GetAll("o", 10).ok());
  const Result<Bytes> refused = bed.store().GetAll("o", 9);
  EXPECT_EQ(CodeOf(refused), Code::kInvalidData);
}

inline void DeletesAndPutsBesideEachOtherDoNotMeet(StoreBed& bed, const StoreTraits&) {
  // The last object of a directory goes while another comes into it.
  std::thread deleter([&] {
    for (int i = 0; i < 60; ++i) EXPECT_TRUE(bed.other().Delete("d/e/gone").ok());
  });
  for (int i = 0; i < 20; ++i) {
    PutOk(bed.store(), "d/e/" + std::to_string(i), Pattern(10));
    static_cast<void>(bed.store().Put("d/e/gone", Pattern(10)));
    EXPECT_TRUE(Whole(bed.store(), "d/e/" + std::to_string(i)) == Pattern(10));
    EXPECT_TRUE(bed.store().Delete("d/e/" + std::to_string(i)).ok());
  }
  deleter.join();
}

inline void TheUrlIsAbsolute(StoreBed& bed, const StoreTraits&) {
  EXPECT_THAT(bed.store().url(), testing::ContainsRegex("^[a-z0-9]+:."));
  EXPECT_EQ(bed.store().url(), bed.other().url());
}

}  // namespace store_cases

inline std::vector<StoreCase> StoreCases() {
  using namespace store_cases;
  return {
      {"RoundTripsEverySize", &RoundTripsEverySize},
      {"RangesAreExact", &RangesAreExact},
      {"ReadsPastTheEndAreDataLoss", &ReadsPastTheEndAreDataLoss},
      {"WhatIsNotThereIsNotFound", &WhatIsNotThereIsNotFound},
      {"PutsAreCreateOnly", &PutsAreCreateOnly},
      {"OneOfManyWritersWins", &OneOfManyWritersWins},
      {"UploadsAppearWhenCommittedAndWhole", &UploadsAppearWhenCommittedAndWhole},
      {"UploadsInterleave", &UploadsInterleave},
      {"AbortedUploadsLeaveNothing", &AbortedUploadsLeaveNothing},
      {"OddKeysRoundTrip_S8", &OddKeysRoundTrip_S8},
      {"BadKeysAreRefused_S8", &BadKeysAreRefused_S8},
      {"AKeyBelowAnObjectIsRefusedOrHeld", &AKeyBelowAnObjectIsRefusedOrHeld},
      {"ListsEveryOneOf2501Keys_S9", &ListsEveryOneOf2501Keys_S9},
      {"APrefixCutsAnywhere", &APrefixCutsAnywhere},
      {"ListTellsSizesAndTimesAndStopsAtAnError", &ListTellsSizesAndTimesAndStopsAtAnError},
      {"ADeletedObjectIsGone", &ADeletedObjectIsGone},
      {"ReadersSeeAllOrNothing_X3", &ReadersSeeAllOrNothing_X3},
      {"BoundsWhatIsReadWhole", &BoundsWhatIsReadWhole},
      {"DeletesAndPutsBesideEachOtherDoNotMeet", &DeletesAndPutsBesideEachOtherDoNotMeet},
      {"TheUrlIsAbsolute", &TheUrlIsAbsolute},
  };
}

inline void RunStoreCase(const std::tuple<StoreProvider, StoreCase>& param) {
  const auto& [provider, store_case] = param;
  const std::unique_ptr<StoreBed> bed = provider.make();
  store_case.run(*bed, provider.traits);
}

// For INSTANTIATE_TEST_SUITE_P: "Memory_RangesAreExact".
template <typename Row>
std::string StoreCaseName(const Row& row) {
  return std::get<0>(row.param).name + "_" + std::get<1>(row.param).name;
}

}  // namespace weightcast::store
