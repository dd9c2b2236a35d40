// The inside of version.json: what makes a document whole. Pure.
#pragma once

#include <string_view>

#include "base/status.h"
#include "catalog/catalog.h"

namespace weightcast::catalog {

// Everything that a READY version, its run and its digests owe each other, from wherever they came.
// Errors: kDataLoss if the digests do not give the root; kInvalidData for the rest.
Status CheckDocument(const VersionDocument& document);

// ParseVersionJson with another opinion on the seal: fuzzing gets past it.
Result<VersionDocument> ParseVersionDocument(std::string_view text,
                                             Status (*check_seal)(std::string_view text));

}  // namespace weightcast::catalog
