// Finds the checkpoint of --resume, in this order:
//   1. Every rank lists the files in its folder; rank 0 gets all lists (Inventory).
//   2. Rank 0 chooses a checkpoint, and the rank that reads each part (Choice).
//   3. These ranks read and check the parts (PartReader). Rank 0 removes damaged parts from its
//      lists, and the whole checkpoint if the replicas differ. It then chooses again
//      (choose_and_read).
//   4. Each part goes to the rank that takes it over, and the log to rank 0 (hand_over).
#include "app/checkpoint/resume.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "app/checkpoint/run_state.hpp"
#include "app/process/rank_main.hpp"
#include "comm/mpi/send_bytes.hpp"
#include "io/files/whole_file.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

constexpr int kNobody = -1;

// The chosen checkpoint, and the rank that reads each part; kNobody: the part is lost.
struct Choice {
  ShardFile any;  // names the checkpoint; is_complete is unused, since it differs between parts
  std::vector<int> readers;

  [[nodiscard]] const CheckpointId& id() const { return any.checkpoint; }
};

// All ranks' files, on rank 0.
class Inventory {
 public:
  // names: for each rank, the names of its files, one on each line.
  explicit Inventory(const std::vector<std::string>& names)
      : ranks_(static_cast<int>(names.size())) {
    for (int holder = 0; holder < ranks_; ++holder) {
      std::istringstream lines(names[static_cast<std::size_t>(holder)]);
      for (std::string line; std::getline(lines, line);) {
        const auto file = parse_shard_name(line);
        if (!file) continue;
        Found& found = found_[file->checkpoint];
        found.was_complete |= file->is_complete;
        found.holders[file->rank].insert(holder);
      }
    }
  }

  [[nodiscard]] bool is_empty() const { return found_.empty(); }

  // Chooses the newest checkpoint with all parts. If there is none, chooses the checkpoint with the
  // fewest missing parts among those that once had all parts. If there is no such checkpoint
  // either, `readers` is empty.
  [[nodiscard]] Choice choose() const {
    const std::pair<const CheckpointId, Found>* best = nullptr;
    const auto missing = [](const auto& entry) {
      return entry.first.ranks - entry.second.holders.size();
    };
    for (const auto& entry : found_) {  // older steps first
      if (entry.second.holders.empty()) continue;
      if (missing(entry) > 0 && !entry.second.was_complete) continue;
      if (best == nullptr || missing(entry) <= missing(*best)) best = &entry;
    }
    Choice choice;
    if (best == nullptr) return choice;
    choice.any.checkpoint = best->first;
    for (std::uint32_t rank = 0; rank < best->first.ranks; ++rank) {
      const auto holders = best->second.holders.find(rank);
      if (holders == best->second.holders.end()) {
        choice.readers.push_back(kNobody);
        continue;
      }
      // Prefers the rank that takes the part over, if this rank has the file.
      const int user = static_cast<int>(rank) % ranks_;
      choice.readers.push_back(holders->second.contains(user) ? user : *holders->second.begin());
    }
    return choice;
  }

  void remove(const CheckpointId& id) { found_.erase(id); }
  void remove(const CheckpointId& id, std::uint32_t rank, int holder) {
    auto& holders = found_[id].holders;
    holders[rank].erase(holder);
    if (holders[rank].empty()) holders.erase(rank);
  }

 private:
  struct Found {
    bool was_complete = false;
    std::map<std::uint32_t, std::set<int>> holders;  // by the part's rank
  };
  int ranks_;
  std::map<CheckpointId, Found> found_;
};

std::string text_of(const Choice& choice) {
  if (choice.readers.empty()) return {};
  std::string text =
      fmt::format("{} {} {}", choice.id().step, choice.id().attempt, choice.id().ranks);
  for (const int reader : choice.readers) text += fmt::format(" {}", reader);
  return text;
}

Choice choice_of(const std::string& text) {
  Choice choice;
  std::istringstream in(text);
  CheckpointId& id = choice.any.checkpoint;
  if (!(in >> id.step >> id.attempt >> id.ranks)) return choice;
  for (int reader = 0; in >> reader;) choice.readers.push_back(reader);
  return choice;
}

// Reads parts, and the log beside them, from this rank's folder.
class PartReader {
 public:
  explicit PartReader(std::string folder) : folder_(std::move(folder)) {}

  // Throws Error(data) if the file is not whole, or if its head does not fit its name.
  [[nodiscard]] Shard read(const CheckpointId& id, std::uint32_t rank) const {
    ShardFile file = {.checkpoint = id, .rank = rank, .is_complete = true};
    if (is_missing(path(name_of(file)))) file.is_complete = false;
    Shard part = Shard::read(path(name_of(file)));
    try {
      CheckpointHead(part.text(kHeadEntry)).check_owner(file);
    } catch (const Error& error) {
      throw_error(ErrorKind::data, "{}: {}", path(name_of(file)), error.what());
    }
    return part;
  }

  // Returns the log that belongs to the head. If the file is missing or is another log, prints a
  // line and returns nothing.
  [[nodiscard]] std::vector<std::byte> read_log(const CheckpointId& id,
                                                const CheckpointHead& head) const {
    if (!head.has("log.hash")) return {};
    try {
      std::optional<std::uint64_t> size;
      if (head.has("log.size")) size = head.number("log.size");
      std::vector<std::byte> log = read_whole_file(path(log_name_of(id)), size);
      if (XXH3_64bits(log.data(), log.size()) == head.number("log.hash")) return log;
    } catch (const Error&) {
      // A log that cannot be read is treated like a missing one.
    }
    std::fprintf(stderr,
                 "dptrain: %s is lost or damaged: a new log begins, without the earlier epochs\n",
                 path(log_name_of(id)).c_str());
    return {};
  }

 private:
  [[nodiscard]] std::string path(const std::string& name) const {
    return (std::filesystem::path(folder_) / name).string();
  }
  std::string folder_;
};

// The parts of the chosen checkpoint that this rank has read, by the part's rank.
using Parts = std::map<std::uint32_t, Shard>;

// Whether all lines of all texts are the same.
bool are_same(const std::vector<std::string>& texts) {
  std::set<std::string> lines;
  for (const std::string& text : texts) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.insert(line);
  }
  return lines.size() <= 1;
}

// Collective. Throws if checkpoints exist but none can be read. Without this check, the run would
// start from the beginning and remove the checkpoints.
void refuse_to_begin_again(const Options& options, Communicator& comm, bool has_failed) {
  together(comm, kDptrainNames, [&] {
    if (!has_failed) return;
    throw SettingError(Setting{"checkpoint"}, options.checkpoint,
                       "holds checkpoints, but none can be read; --resume would start anew and "
                       "remove them: repair or remove them, or give another folder",
                       ErrorKind::data);
  });
}

// Collective: reads the parts of the choice. Chooses again, without the parts that are not whole,
// until a choice can be read.
Choice choose_and_read(const Options& options, Communicator& comm, Parts& parts) {
  std::string names;
  together(comm, kDptrainNames, [&] {
    for (const ShardFile& file : list_shards(options.checkpoint)) names += name_of(file) + "\n";
  });
  std::optional<Inventory> inventory;
  const std::vector<std::string> all = comm.gather(names);
  if (comm.rank() == 0) inventory.emplace(all);
  std::set<std::string> told;
  bool has_failed = false;  // on rank 0: a part of some checkpoint could not be read
  const PartReader reader(options.checkpoint);
  for (;;) {
    std::string text;
    if (inventory) text = text_of(inventory->choose());
    comm.broadcast(text);
    const Choice choice = choice_of(text);
    if (choice.readers.empty()) refuse_to_begin_again(options, comm, has_failed);
    parts.clear();
    std::string failures;  // "RANK message", a line each
    std::string hashes;    // of the replicated state, a line for each part
    comm.busy([&] {
      for (std::uint32_t r = 0; r < choice.readers.size(); ++r) {
        if (choice.readers[r] != comm.rank()) continue;
        try {
          const Shard& part = parts.emplace(r, reader.read(choice.id(), r)).first->second;
          hashes += fmt::format("{:016x}\n", replicated_hash(part));
        } catch (...) {  // of any type: an earlier checkpoint may be whole
          std::string why;
          static_cast<void>(exit_code_of_current_exception(why));
          failures += fmt::format("{} {}\n", r, why);
        }
      }
    });
    bool is_good = true;
    const std::vector<std::string> of_all = comm.gather(failures);
    for (std::size_t holder = 0; holder < of_all.size(); ++holder) {
      std::istringstream lines(of_all[holder]);
      std::uint32_t rank = 0;
      for (std::string message; lines >> rank && std::getline(lines, message);) {
        is_good = false;
        has_failed = true;
        inventory->remove(choice.id(), rank, static_cast<int>(holder));
        if (!told.insert(comm.hosts()[holder] + message).second) continue;
        std::fprintf(stderr, "dptrain: on %s:%s; it counts as missing\n",
                     comm.hosts()[holder].c_str(), message.c_str());
      }
    }
    // Checks that the replicas agree. An earlier run may have ended because its replicas differed,
    // before it could remove its files.
    if (const std::vector<std::string> of_all_parts = comm.gather(hashes);
        comm.rank() == 0 && is_good && options.exchange && !are_same(of_all_parts)) {
      is_good = false;
      inventory->remove(choice.id());
      std::fprintf(stderr,
                   "dptrain: in the checkpoint of step %llu the replicas differ; it counts as "
                   "missing\n",
                   static_cast<unsigned long long>(choice.id().step));
    }
    if (comm.all_gather(std::uint8_t{is_good}).front() != 0) return choice;
  }
}

// A part with only the replicated entries, without the entries that are the rank's own.
std::vector<std::byte> replicated_part(const Shard& shard) {
  std::vector<ShardEntry> entries;
  std::vector<std::size_t> from;
  for (std::size_t i = 0; i < shard.entries().size(); ++i) {
    if (is_own_entry(shard.entries()[i])) continue;
    entries.push_back(shard.entries()[i]);
    from.push_back(i);
  }
  ShardImage image;
  image.lay_out(std::move(entries));
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::ranges::copy(shard.bytes_of(from[i]), image.bytes_of(i).begin());
  }
  const std::span<const std::byte> file = image.seal();
  return {file.begin(), file.end()};
}

// Collective: brings each part to the rank that takes it over, and the log to rank 0.
void hand_over(const Options& options, Communicator& comm, const Choice& choice, Parts& parts,
               ResumePoint& point) {
  const int ranks = comm.size(), me = comm.rank();
  std::vector<bool> has_own(static_cast<std::size_t>(ranks));
  int first_reader = kNobody;
  std::uint32_t first_part = 0;
  for (std::uint32_t r = 0; r < choice.readers.size(); ++r) {
    if (choice.readers[r] == kNobody) {
      point.lost.push_back(r);
      continue;
    }
    if (first_reader == kNobody) {
      first_reader = choice.readers[r];
      first_part = r;
    }
    has_own[r % static_cast<std::uint32_t>(ranks)] = true;
  }
  // The head, and the log that belongs to it.
  std::string head;
  if (me == first_reader) head = parts.at(first_part).text(kHeadEntry);
  comm.broadcast(head, first_reader);
  point.head = CheckpointHead(head);
  if (me == first_reader) {
    comm.busy(
        [&] { point.log = PartReader(options.checkpoint).read_log(choice.id(), point.head); });
    if (me != 0) {
      send_bytes(comm, point.log, 0);
      point.log.clear();
    }
  } else if (me == 0) {
    point.log = receive_bytes(comm, first_reader);
  }
  const bool have_owners = std::ranges::all_of(parts, [](const auto& part) {
    return CheckpointHead(part.second.text(kHeadEntry)).has_owner();
  });
  point.all_have_owners =
      std::ranges::count(comm.all_gather(std::uint8_t{have_owners}), std::uint8_t{0}) == 0;
  // Ranks without a part of their own get the replicated entries of the first part.
  for (int q = 0; q < ranks; ++q) {
    if (has_own[static_cast<std::size_t>(q)]) continue;
    if (me == first_reader) {
      std::vector<std::byte> file = replicated_part(parts.at(first_part));
      if (q == me) {
        point.replicated.emplace(std::move(file), parts.at(first_part).name());
      } else {
        send_bytes(comm, file, q);
      }
    } else if (me == q) {
      point.replicated.emplace(receive_bytes(comm, first_reader),
                               fmt::format("the part of rank {}", first_part));
    }
  }
  for (std::uint32_t r = 0; r < choice.readers.size(); ++r) {
    const int reader = choice.readers[r], user = static_cast<int>(r) % ranks;
    if (reader == kNobody) continue;
    if (me == reader && me == user) {
      point.own.push_back(std::move(parts.at(r)));
    } else if (me == reader) {
      send_bytes(comm, parts.at(r).file(), user);
    } else if (me == user) {
      point.own.emplace_back(receive_bytes(comm, reader), fmt::format("the part of rank {}", r));
    }
  }
}

}  // namespace

std::optional<ResumePoint> find_resume_point(const Options& options, Communicator& comm) {
  together(comm, kDptrainNames, [&] {
    if (options.resume || list_shards(options.checkpoint).empty()) return;
    throw SettingError(Setting{"checkpoint"}, options.checkpoint,
                       "holds the checkpoints of another run: continue it with --resume, or give "
                       "another folder",
                       ErrorKind::data);
  });
  if (!options.resume) return std::nullopt;
  Parts parts;
  const Choice choice = choose_and_read(options, comm, parts);
  if (choice.readers.empty()) return std::nullopt;
  ResumePoint point;
  point.checkpoint = choice.id();
  hand_over(options, comm, choice, parts, point);
  return point;
}

std::uint32_t draw_attempt(Communicator& comm) {
  std::uint32_t mine = 0;
  if (comm.rank() == 0) mine = static_cast<std::uint32_t>(std::random_device()());
  return comm.all_gather(mine).front();
}

}  // namespace dp
