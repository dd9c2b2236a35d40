// One transaction whose work has an answer: InRead(rows, [&](Tables& t) -> Result<Run> {...}).
// The work may run again (Rows): it begins by resetting what it fills in by reference.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "catalog/rows.h"
#include "catalog/tables.h"

namespace weightcast::catalog {

template <typename Work>
auto InTransaction(Rows& rows, Status (Rows::*run)(const Rows::Work&), const Work& work)
    -> std::invoke_result_t<Work, Tables&> {
  std::optional<std::invoke_result_t<Work, Tables&>> answer;
  const Status status = (rows.*run)([&](Txn& txn) -> Status {
    Tables tables(txn);
    answer.emplace(work(tables));
    if (!answer->ok()) return answer->error();
    return Ok();
  });
  if (!status.ok()) return status.error();
  return std::move(*answer);
}

template <typename Work>
auto InRead(Rows& rows, const Work& work) {
  return InTransaction(rows, &Rows::Read, work);
}
template <typename Work>
auto InWrite(Rows& rows, const Work& work) {
  return InTransaction(rows, &Rows::Write, work);
}

}  // namespace weightcast::catalog
