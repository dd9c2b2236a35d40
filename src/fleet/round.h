// One coordinated update of a run's engines: prepared while they serve, committed in the catalog
// when all that were not left out have proven it, then resumed. docs/design/round.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "catalog/catalog.h"
#include "engine/face.h"
#include "os/world.h"

namespace weightcast::fleet {

struct RoundOptions {
  std::optional<engine::InitInfo> init;  // none: the engines were told before
  engine::PauseMode pause_mode = engine::PauseMode::kKeep;
  // Of one call to one engine.
  Duration ask_timeout = seconds(20);
  Duration prepare_timeout = seconds(3600);  // init, prepare: while it serves
  Duration pause_timeout = seconds(120);     // pause, flush, resume
  Duration update_timeout = seconds(300);    // start, update, finish
  Duration prove_timeout = seconds(300);
  Duration catalog_timeout = seconds(30);  // of a step of the round's row, with retries
  // How long the run is blocked when this process dies; renewed four times as often.
  Duration lease = seconds(120);
};

struct EngineReport {
  std::optional<Error> error;  // why it was kept back or fenced
  double seconds_prepare = 0;
  double seconds_pause = 0;  // from the call to pause until it was resumed, or the end of the round
  double seconds_update = 0;  // flush, start, update, finish
  double seconds_prove = 0;
};

struct RoundReport {
  catalog::Round round;               // as its row is, or would be if the catalog had taken it
  std::vector<EngineReport> engines;  // in the order of the faces
  double seconds = 0;

  // Ok if every engine serves the version; else the error of the first that is fenced, or kept
  // back, naming all.
  Status Outcome() const;
};

// Drives every face to `version`, a READY one of its run. Ends; every wait has a deadline.
// Errors: those of BeginRound, and the end of a round that is not even known; everything else is in
// the report.
Result<RoundReport> RunRound(os::World& world, catalog::Catalog& catalog,
                             const catalog::Version& version,
                             const std::vector<std::unique_ptr<engine::Face>>& faces,
                             const RoundOptions& options);

}  // namespace weightcast::fleet
