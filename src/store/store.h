// Where bytes live: objects under keys, written once, read by ranges. A directory, memory, S3; and
// wrappers (wrappers.h) that add faults, throttling, counting. It does not know what bytes mean.
//
// Promises of every store:
//   - Put is create-only and atomic: readers see no object or the whole object, whoever dies when;
//     of two writers of one key exactly one wins, the other gets kAlreadyExists.
//   - An object never changes. It may be deleted.
//   - A Put that returned ok is durable and visible to every later read through any client.
//   - A Delete that returned ok is durable: nothing brings the object back.
//   - List is for sweeping and rebuilding only; nothing else depends on it, and it may lag behind.
// Errors: kNotFound, kAlreadyExists, kInvalidArgument (a bad key), kUnavailable,
// kResourceExhausted (full), kDeadlineExceeded. After kUnavailable a Put may or may not have
// happened: the caller retries under a new random key (or accepts kAlreadyExists as its own).
// All methods may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace weightcast::store {

// '/'-separated, relative, each part non-empty and neither "." nor ".."; at most kKeyBytesMax bytes
// of UTF-8, kKeyPartBytesMax in a part. Anything else that a file name can hold is allowed, except
// ".tmp" as the first part: a directory keeps unfinished objects there. No key may be another one
// plus '/' and more ("a" and "a/b"): whether a store refuses it (kInvalidArgument) is up to the
// store.
inline constexpr size_t kKeyBytesMax = 1024;
inline constexpr size_t kKeyPartBytesMax = 255;  // what a file name can hold
Status CheckKey(std::string_view key);

// An object being written in pieces, in bounded memory. Destroying it without Commit aborts.
class Upload {
 public:
  virtual ~Upload() = default;
  virtual Status Append(ByteSpan bytes) = 0;
  // Makes the object visible. Errors as Put. Once, at the end.
  virtual Status Commit() = 0;
};

struct ObjectInfo {
  std::string key;
  int64_t bytes = 0;
  int64_t modified_unix_ms = 0;  // by the store's clock; for sweeping only
};

class Store {
 public:
  virtual ~Store() = default;

  // Absolute, without secrets: what a version remembers ("file:/data/weights", "s3://bucket/p").
  virtual std::string url() const = 0;

  virtual Status Put(std::string_view key, ByteSpan bytes) = 0;
  // `bytes_hint`: expected size (0: unknown); a store may size its buffers by it.
  virtual Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, int64_t bytes_hint) = 0;

  // Fills `out` with bytes [offset, offset + out.size()) of the object.
  // Errors: kDataLoss if the object ends before.
  virtual Status Get(std::string_view key, int64_t offset, MutableByteSpan out) = 0;
  virtual Result<int64_t> Size(std::string_view key) = 0;

  // Calls `visit` for every object whose key starts with `prefix`, in any order, until it fails.
  virtual Status List(std::string_view prefix,
                      const std::function<Status(const ObjectInfo&)>& visit) = 0;
  // Fine if it is not there.
  virtual Status Delete(std::string_view key) = 0;

  // Reads a whole object of at most `bytes_max`. Errors: kInvalidData if larger.
  Result<Bytes> GetAll(std::string_view key, int64_t bytes_max);
};

}  // namespace weightcast::store
