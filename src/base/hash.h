// SHA-256 (OpenSSL) where tampering matters, XXH3 where only a local check is meant.
#pragma once

#include <memory>

#include "base/bytes.h"
#include "base/ids.h"

namespace weightcast {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(ByteSpan bytes);
  // Ends the stream; the object may only be destroyed afterwards.
  Sha256Digest Finish();

  static Sha256Digest Of(ByteSpan bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

uint64_t Xxh3(ByteSpan bytes);

}  // namespace weightcast
