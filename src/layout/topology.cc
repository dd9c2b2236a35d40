#include "layout/topology.h"

#include <algorithm>
#include <utility>

namespace weightcast::layout {
namespace {

struct Number {
  const char* name;
  int64_t value;
};

Error DoesNotFit(std::string what) { return {Code::kInvalidData, "topology: " + std::move(what)}; }

std::string Text(const Number& n) { return std::string(n.name) + " " + std::to_string(n.value); }

Status CheckDivides(const Number& divisor, const Number& n) {
  if (n.value % divisor.value == 0) return Ok();
  return DoesNotFit(Text(n) + " is not divisible by " + Text(divisor));
}

// The layers of a stage that is neither the first nor the last, and how many such stages there are,
// where the first or the last stage was given a number of its own.
struct Middle {
  int64_t layers = 0;
  int32_t stages = 0;
};
Middle MiddleOf(const Topology& t) {
  Middle m{t.num_layers, t.pp};
  if (t.layers_in_first_stage >= 0) {
    m.layers -= t.layers_in_first_stage;
    --m.stages;
  }
  if (t.layers_in_last_stage >= 0) {
    m.layers -= t.layers_in_last_stage;
    --m.stages;
  }
  return m;
}

bool GivenStages(const Topology& t) {
  return t.layers_in_first_stage >= 0 || t.layers_in_last_stage >= 0;
}

Status CheckGivenStages(const Topology& t) {
  if (t.account_for_embedding || t.account_for_loss) {
    return DoesNotFit(
        "num_layers_in_first/last_pipeline_stage and account_for_embedding/loss_in_pipeline_split "
        "exclude each other");
  }
  if (t.pp == 1) {
    return DoesNotFit("num_layers_in_first/last_pipeline_stage needs more than one pipeline stage");
  }
  const Middle middle = MiddleOf(t);
  if (middle.layers < 0 || (middle.stages == 0 && middle.layers != 0)) {
    return DoesNotFit("first stage " + std::to_string(t.layers_in_first_stage) +
                      " and last stage " + std::to_string(t.layers_in_last_stage) +
                      " layers do not add up to num_layers " + std::to_string(t.num_layers) +
                      " on " + std::to_string(t.pp) + " stages");
  }
  const Number vpp{"virtual pipeline chunks", t.vpp};
  if (t.layers_in_first_stage >= 0) {
    WC_TRY(CheckDivides(vpp, {"num_layers_in_first_pipeline_stage", t.layers_in_first_stage}));
  }
  if (t.layers_in_last_stage >= 0) {
    WC_TRY(CheckDivides(vpp, {"num_layers_in_last_pipeline_stage", t.layers_in_last_stage}));
  }
  if (middle.stages > 0) {
    WC_TRY(CheckDivides({"middle pipeline stages", middle.stages}, {"layers left", middle.layers}));
    WC_TRY(CheckDivides(vpp, {"layers a middle stage", middle.layers / middle.stages}));
  }
  return Ok();
}

Status CheckLayout(const Topology& t) {
  if (GivenStages(t) || t.account_for_embedding || t.account_for_loss) {
    return DoesNotFit(
        "pipeline_model_parallel_layout excludes num_layers_in_first/last_pipeline_stage and "
        "account_for_embedding/loss_in_pipeline_split");
  }
  const auto chunks = static_cast<int64_t>(t.layout.size());
  if (chunks != int64_t{t.pp} * t.vpp) {
    return DoesNotFit("pipeline_model_parallel_layout has " + std::to_string(chunks) +
                      " stages, expected pipeline parallel size " + std::to_string(t.pp) +
                      " x virtual pipeline chunks " + std::to_string(t.vpp));
  }
  const PipelineChunk& end = t.layout.back();
  if (end.first_layer + end.layers != t.num_layers) {
    return DoesNotFit("pipeline_model_parallel_layout has " +
                      std::to_string(end.first_layer + end.layers) +
                      " decoder layers (t), expected num_layers " + std::to_string(t.num_layers));
  }
  if (t.MtpAt().chunk != t.vpp - 1) {
    return DoesNotFit(
        "pipeline_model_parallel_layout has prediction modules (m) in virtual pipeline chunk " +
        std::to_string(t.MtpAt().chunk) + ", expected the last one");
  }
  return Ok();
}

// Layers plus the embedding and the loss where they count as one.
int32_t Slots(const Topology& t) {
  return t.num_layers + (t.account_for_embedding ? 1 : 0) + (t.account_for_loss ? 1 : 0);
}

}  // namespace

std::string CoordinatesText(const Coordinates& at) {
  const Number numbers[] = {{"tp", at.tp}, {"pp", at.pp},   {"dp", at.dp},  {"cp", at.cp},
                            {"ep", at.ep}, {"etp", at.etp}, {"edp", at.edp}};
  std::string text = "rank " + std::to_string(at.rank) + " (";
  for (const Number& n : numbers) text += (&n == numbers ? "" : ", ") + Text(n);
  return text + ")";
}

Status Topology::Check() const {
  const Number sizes[] = {{"world", world},
                          {"tensor parallel size", tp},
                          {"pipeline parallel size", pp},
                          {"virtual pipeline chunks", vpp},
                          {"context parallel size", cp},
                          {"expert parallel size", ep},
                          {"expert tensor parallel size", etp}};
  for (const Number& n : sizes) {
    if (n.value < 1 || n.value > kWorldMax) {
      return DoesNotFit(Text(n) + " is not in 1.." + std::to_string(kWorldMax));
    }
  }
  if (num_layers < 1 || num_layers > kLayersMax) {
    return DoesNotFit("num_layers " + std::to_string(num_layers) + " is not in 1.." +
                      std::to_string(kLayersMax));
  }
  if (int64_t{pp} * vpp > kWorldMax) {
    return DoesNotFit("more than " + std::to_string(kWorldMax) + " pipeline chunks");
  }
  const int64_t dense = int64_t{tp} * pp;
  const int64_t expert = int64_t{etp} * ep;
  WC_TRY(CheckDivides({"tensor x pipeline parallel size", dense}, {"world", world}));
  WC_TRY(CheckDivides({"context parallel size", cp}, {"ranks a shard", world / dense}));
  WC_TRY(CheckDivides({"expert x expert tensor parallel size", expert},
                      {"ranks a stage", world / pp}));
  if (vpp > 1 && pp == 1) {
    return DoesNotFit("virtual pipeline chunks " + std::to_string(vpp) +
                      " need more than one pipeline stage");
  }
  if (!layout.empty()) return CheckLayout(*this);
  if (GivenStages(*this)) return CheckGivenStages(*this);
  WC_TRY(CheckDivides({"pipeline stages", pp},
                      {"num_layers (with embedding and loss where they count)", Slots(*this)}));
  return CheckDivides({"virtual pipeline chunks", vpp}, {"layers a stage", Slots(*this) / pp});
}

Coordinates Topology::At(int32_t rank) const {
  Coordinates at;
  at.rank = rank;
  const int32_t a_stage = world / pp;
  const int32_t in_stage = rank % a_stage;
  at.pp = rank / a_stage;
  at.tp = in_stage % tp;
  at.cp = in_stage / tp % cp;
  at.dp = in_stage / (tp * cp);
  at.etp = in_stage % etp;
  at.ep = in_stage / etp % ep;
  at.edp = in_stage / (etp * ep);
  return at;
}

Topology::LayerRange Topology::LayersOf(int32_t pp_rank, int32_t vpp_chunk) const {
  if (!layout.empty()) {
    const PipelineChunk& chunk = layout[static_cast<size_t>(vpp_chunk) * static_cast<size_t>(pp) +
                                        static_cast<size_t>(pp_rank)];
    return {chunk.first_layer, chunk.layers};
  }
  const bool first = pp_rank == 0;
  const bool last = pp_rank == pp - 1;
  if (!GivenStages(*this)) {
    const int32_t count = Slots(*this) / pp / vpp;
    LayerRange range{(vpp_chunk * pp + pp_rank) * count, count};
    if (account_for_embedding) {  // takes the first slot of the first chunk
      if (first && vpp_chunk == 0) {
        --range.count;
      } else {
        --range.first;
      }
    }
    if (account_for_loss && last && vpp_chunk == vpp - 1) --range.count;
    return range;
  }
  const Middle middle = MiddleOf(*this);
  const int32_t f = layers_in_first_stage >= 0 ? layers_in_first_stage / vpp : 0;
  const int32_t z = layers_in_last_stage >= 0 ? layers_in_last_stage / vpp : 0;
  const int32_t middle_layers = static_cast<int32_t>(middle.layers);
  const int32_t m = middle.stages > 0 ? middle_layers / middle.stages / vpp : 0;
  const int32_t a_round = middle_layers / vpp + f + z;  // one chunk of every stage
  const int32_t middles_before = layers_in_first_stage >= 0 ? pp_rank - 1 : pp_rank;
  if (first && layers_in_first_stage >= 0) return {vpp_chunk * a_round, f};
  return {vpp_chunk * a_round + f + middles_before * m, last && layers_in_last_stage >= 0 ? z : m};
}

Topology::Chunk Topology::MtpAt() const {
  const auto found = std::ranges::find_if(layout, [](const auto& c) { return c.mtp_layers > 0; });
  if (found == layout.end()) return OutputAt();
  const auto i = static_cast<int32_t>(found - layout.begin());
  return {i % pp, i / pp};
}

Topology::Chunk Topology::LastLayerAt() const {
  for (int32_t i = vpp * pp - 1; i > 0; --i) {
    if (LayersOf(i % pp, i / pp).count > 0) return {i % pp, i / pp};
  }
  return {0, 0};
}

}  // namespace weightcast::layout
