// Names of rules and stacks with their marks filled in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bridge/megatron_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

// What the marks in a name stand for.
struct Numbers {
  int32_t module = 0;        // '*'
  int32_t after_layers = 0;  // '+'
  int32_t expert = 0;        // '#'
  std::string_view inner;    // '@'
  std::string_view tower;    // '^'
  bool any = false;          // '*' and '+' are '*': a pattern
};

std::string Filled(std::string_view pattern, const Numbers& numbers);

// A rule's name as the trainer spells it.
const char* SpelledName(const Rule& rule, const MegatronConfig& trainer);

}  // namespace weightcast::bridge
