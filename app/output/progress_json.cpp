#include "app/output/progress_json.hpp"

#include <cstring>
#include <iostream>

#include "app/output/run_description.hpp"
#include "app/process/build_info.hpp"

namespace dp {
namespace {

// Adds the columns of a log row, under the names that they have in the log. A hash becomes a text.
template <class Row>
void add_columns(JsonObject& event, const Row& row) {
  const auto* bytes = reinterpret_cast<const char*>(&row);
  for (const LogField& field : log_fields<Row>()) {
    const auto value_of = [&]<class T>(T value) {
      std::memcpy(&value, bytes + field.offset, sizeof(value));
      return value;
    };
    switch (field.type) {
      case LogType::int64:
        event.whole(field.name, value_of(std::int64_t{}));
        break;
      case LogType::uint64:
        event.hash(field.name, value_of(std::uint64_t{}));
        break;
      case LogType::float64:
        event.real(field.name, value_of(double{}));
        break;
    }
  }
}

JsonObject event_of(std::string_view name) {
  JsonObject event;
  event.text("event", name);
  return event;
}

void add_link(JsonObject& event, const LinkProbe& link) {
  if (!(link.bytes_per_s > 0)) {
    event.null("link");
    return;
  }
  event.object("link", JsonObject()
                           .real("bytes_per_s", link.bytes_per_s)
                           .real("latency_s", link.latency_s)
                           .real("uncertainty", link.uncertainty));
}

void add_buckets(JsonObject& event, const RunStart& start) {
  std::vector<JsonObject> buckets;
  for (std::size_t b = 0; b < start.run.buckets.size(); ++b) {
    const Bucket& bucket = start.run.buckets[b];
    JsonObject row;
    row.whole("bucket", b)
        .whole("elements", bucket.elements)
        .text("codec", bucket.codec.text())
        .text("topology", start.run.topology_of(bucket));
    if (b < start.bucket_bytes.size() && start.bucket_bytes[b]) {
      row.whole("sent_bytes", *start.bucket_bytes[b]);
    } else {
      row.null("sent_bytes");
    }
    buckets.push_back(row);
  }
  event.objects("buckets", buckets);
}

}  // namespace

JsonProgress::JsonProgress() : JsonProgress(std::cout, std::cerr) {}

// Writes the line in one piece, so that no other process can write into it.
void JsonProgress::write(const JsonObject& event) {
  const std::string line = event.str() + "\n";
  out_.write(line.data(), static_cast<std::streamsize>(line.size()));
  out_.flush();
}

void JsonProgress::start(const RunStart& start) {
  const RunDescription& run = start.run;
  const Options& o = *run.options;
  log_ = start.log;
  JsonObject options;
  for (const auto& [name, value] : o.resolved()) options.text(name, value);
  JsonObject event = event_of("start");
  event.whole("format", kFormat)
      .text("version", build_name())
      .text("kind", o.epochs > 0 ? "training" : "evaluation")
      .text_or_null("log", start.log)
      .text("model", o.model)
      .whole("parameters", run.network->parameters().size())
      .whole("train_images", run.data->train->count())
      .whole("test_images", run.data->test->count())
      .whole("ranks", run.comm->size())
      .texts("hosts", run.comm->hosts())
      .texts("devices", start.devices)
      .real("cores_per_rank", run.share.cores_per_rank)
      .whole("epochs", o.epochs)
      .whole("steps_per_epoch", run.steps_per_epoch)
      .whole("global_batch", run.global_batch);
  if (run.resume != nullptr) {
    event.object("resumed_from", JsonObject()
                                     .whole("step", run.resume->checkpoint.step)
                                     .whole("epoch", run.resume->epoch()));
  } else {
    event.null("resumed_from");
  }
  add_link(event, run.link);
  add_buckets(event, start);
  write(event.object("options", options));
}

void JsonProgress::prediction(const StepForecast& forecast, double bits) {
  write(event_of("prediction")
            .real("step_s", forecast.step_s)
            .real("exposed_comm_s", forecast.exposed_s)
            .real("sent_bytes", forecast.sent_bytes)
            .real("bits", bits));
}

void JsonProgress::note(std::string_view text) { write(event_of("note").text("text", text)); }

void JsonProgress::warn(std::string_view text) {
  write(event_of("warning").text("text", text));
  err_ << "dptrain: " << text << '\n' << std::flush;
}

void JsonProgress::shares(std::span<const ShareRow> rows, std::string_view why) {
  std::vector<JsonObject> ranks(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) add_columns(ranks[r], rows[r]);
  write(event_of("shares")
            .whole("step", rows.front().step)
            .text_or_null("why", why)
            .objects("ranks", ranks));
}

void JsonProgress::logged_steps(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) {
    JsonObject event = event_of("step");
    add_columns(event, row);
    write(event);
  }
}

void JsonProgress::epoch(const EpochEnd& epoch) {
  JsonObject event = event_of("epoch");
  add_columns(event, epoch.row);
  const auto sent = static_cast<double>(epoch.row.times.sent_bytes);
  write(event.whole("epochs", epoch.epochs)
            .real("steps", epoch.steps)
            .real("images_per_s", epoch.images_per_s)
            .real("share_of_fp32", epoch.fp32_bytes > 0 ? sent / epoch.fp32_bytes : kNotMeasured)
            .real("bits_per_value", epoch.bits_per_value));
}

void JsonProgress::checkpoint(std::uint64_t step, const std::string& folder) {
  write(event_of("checkpoint").whole("step", step).text("folder", folder));
}

void JsonProgress::evaluation(const EvaluationEnd& result) {
  write(event_of("evaluation")
            .real("test_loss", result.loss)
            .real("test_accuracy", result.accuracy)
            .whole("images", result.images)
            .text_or_null("augmentation", result.augmentation));
}

void JsonProgress::end(int exit_code, const std::string& message) {
  write(event_of("end")
            .whole("exit_code", exit_code)
            .text_or_null("message", message)
            .text_or_null("log", log_));
}

}  // namespace dp
