#include "app/output/epoch_tally.hpp"

#include <fmt/format.h>

namespace dp {

void EpochTally::list_state(StateVisitor& visitor, StateShare judged) {
  visitor.value("epoch/number", epoch);
  visitor.value("epoch/steps", steps);
  visitor.value("epoch/images", samples);
  visitor.value("epoch/learning_rate", learning_rate);
  visitor.value("epoch/skipped_steps", skipped_steps, judged);
  visitor.value("epoch/own_skipped_steps", own_skipped_steps, judged);
  visitor.value("epoch/exchanges", exchanges);
  visitor.value("epoch/inner_exchanges", inner_exchanges);
  visitor.value("epoch/bits_sum", bits_sum);
  visitor.value("epoch/rated_steps", rated_steps);
  visitor.value("epoch/replica_hash", replica_hash);
  visitor.value("epoch/global_batch", global_batch);
  visitor.value("epoch/steps_of_epoch", steps_of_epoch);
  visitor.value("epoch/loss", loss.loss, StateShare::own);
  visitor.value("epoch/correct", loss.correct, StateShare::own);
  visitor.value("epoch/samples", loss.samples, StateShare::own);
  // Ranks compute at the same time, so their times are not added up.
  const auto time = [&](const char* name, double& seconds) {
    visitor.value(fmt::format("epoch/seconds/{}", name), seconds, StateShare::own,
                  StateMerge::first);
  };
  for (const LoopTimes::Part& part : LoopTimes::parts()) time(part.name, times.*part.time);
  time("checkpoint", checkpoint_s);
  time("earlier", earlier_s);
  time("inner_exposed", inner_exposed_s);
  time("in_flight", in_flight_s);
}

}  // namespace dp
