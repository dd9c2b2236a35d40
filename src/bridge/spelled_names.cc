#include "bridge/spelled_names.h"

namespace weightcast::bridge {

std::string Filled(std::string_view pattern, const Numbers& numbers) {
  std::string text;
  for (const char c : pattern) {
    switch (c) {
      case '*':
        text += numbers.any ? "*" : std::to_string(numbers.module);
        break;
      case '+':
        text += numbers.any ? "*" : std::to_string(numbers.after_layers);
        break;
      case '#':
        text += std::to_string(numbers.expert);
        break;
      case '@':
        text += numbers.inner;
        break;
      case '^':
        text += numbers.tower;
        break;
      default:
        text += c;
    }
  }
  return text;
}

// A rule's name as the trainer spells it.
const char* SpelledName(const Rule& rule, const MegatronConfig& trainer) {
  if (trainer.sequential_experts && rule.sequential_name != nullptr) return rule.sequential_name;
  return trainer.local_spec && rule.local_name != nullptr ? rule.local_name : rule.name;
}

}  // namespace weightcast::bridge
