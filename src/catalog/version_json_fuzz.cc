// version.json, behind its seal: what anyone can write into a store.
#include "catalog/version_json.h"
#include "fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightcast;
  const std::string_view text = AsText({data, size});
  const auto unsealed = [](std::string_view) { return Ok(); };
  const Result<catalog::VersionDocument> document = catalog::ParseVersionDocument(text, +unsealed);
  if (!document.ok()) return 0;
  const std::string encoded = catalog::EncodeVersionJson(*document);
  const Result<catalog::VersionDocument> again = catalog::ParseVersionJson(encoded);
  WC_CHECK(again.ok());
  WC_CHECK(catalog::EncodeVersionJson(*again) == encoded);
  fuzz::Accepted(data, size);
  return 0;
}
