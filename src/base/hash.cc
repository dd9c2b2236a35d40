#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

namespace weightcast {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  WC_CHECK(context_->evp != nullptr);
  WC_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(ByteSpan bytes) {
  WC_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  unsigned size = 0;
  WC_CHECK(EVP_DigestFinal_ex(context_->evp, digest.value.data(), &size) == 1);
  WC_CHECK(size == digest.value.size());
  return digest;
}

Sha256Digest Sha256::Of(ByteSpan bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.Finish();
}

uint64_t Xxh3(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace weightcast
