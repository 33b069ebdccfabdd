"""Four logs whose tables can be computed by hand: one rank with batch 100 and 400, four ranks with none and q8.

4,000 images and a gradient of 1,000,000 values: 4 MB in fp32. At batch 100 an epoch has 40 steps on one rank and K = 10
on four. An uncompressed ring of four sends v = 2 * 3/4 * 4 MB = 6 MB a rank and step, 60 MB an epoch.
"""
from __future__ import annotations

import pathlib

from run_log_fixture import Rows, write_log


def _epoch(epoch_s: float, **more: float) -> dict[str, float]:
    return {"epoch_s": epoch_s, **more}


def _alone(compute_s: float, data_s: float, other_s: float, loss: float, accuracy: float) -> dict[str, float]:
    return _epoch(compute_s + data_s + other_s, forward_s=compute_s / 4, backward_s=compute_s / 2,
                  optimizer_s=compute_s / 4, compute_s=compute_s, data_s=data_s, other_s=other_s, train_loss=loss,
                  test_accuracy=accuracy, test_loss=loss + 0.1, learning_rate=0.1)


def make(folder: pathlib.Path) -> list[pathlib.Path]:
    # Typical: the first epoch does not count, so 40 s. 4,000 / 40 = 100 images/s.
    one = write_log(folder / "one.h5", ranks=1, codec_names=[],
                    epochs=[_alone(40, 1, 1, 2.0, 0.3),
                            _alone(38, 1, 1, 1.5, 0.4),
                            _alone(38, 1, 1, 1.0, 0.5)])
    # The same at batch 400: 32 s, 125 images/s.
    one_400 = write_log(folder / "one_400.h5", ranks=1, batch=400, codec_names=[],
                        epochs=[_alone(33, 1, 1, 2.2, 0.2),
                                _alone(30, 1, 1, 1.8, 0.3),
                                _alone(30, 1, 1, 1.4, 0.4)])

    # The second and third epoch, 15 s and 17 s, are the two middle ones, so their mean is typical: 16 = 10 compute +
    # (4 + 6) / 2 exposed + 0.5 + 0.5, and 3 of 8 s of communication are hidden. busbw 60 MB * 8 / 8 s = 60 Mbit/s: 60 % of
    # 100mbit. On the wire 60 MB * 8 / (8 - 2) s = 80 Mbit/s. The ring's 6 messages after each other at 10 ms, 10 times:
    # 0.6 s; wire at least 480 Mbit / 100 = 4.8 s, the slowest rank computes (11 + 13) / 2 = 12 s: an epoch takes 12.6 s at
    # least, and took 16 / 12.6 = 1.27 times as long. Against one rank at batch 100: 40 / 16 = 2.5, efficiency 62.5 %; at
    # batch 400: 32 / 16 = 2, 50 %. Classical estimate: 16 - 40 / 4 = 6 s. Of 250 MB an epoch 240 are gradients, 96 %.
    def none(epoch_s: float, exposed: float, loss: float, accuracy: float) -> dict[str, float]:
        return _epoch(epoch_s, compute_s=10, forward_s=3, backward_s=6, optimizer_s=1, exposed_comm_s=exposed,
                      data_s=0.5, other_s=0.5, comm_s=8, encode_s=1, decode_s=1, peer_wait_s=2, wire_s=4,
                      sent_bytes=240e6, received_bytes=240e6, sample_bytes=7.5e6, control_bytes=2.5e6,
                      train_loss=loss, test_loss=loss + 0.1, test_accuracy=accuracy, learning_rate=0.1, codec_relative_error=0, delivered_relative_error=0,
                      residual_norm=0)

    ranks: Rows = [{
        "epoch": e, "rank": r, "host": r, "epoch_s": 16, "compute_s": compute + (0, -1, 1)[e], "exposed_comm_s": 15 - compute,
        "data_s": 0.5, "other_s": 0.5, "comm_s": 8, "encode_s": 1, "decode_s": 1, "peer_wait_s": wait,
        "wire_s": 6 - wait, "sent_bytes": 60e6, "received_bytes": 60e6
    } for e in range(3) for r, (compute, wait) in enumerate([(12, 0.2), (10, 2), (9, 2.9), (9, 2.9)])]
    link = {"link_latency_s": 0.01}
    plain = write_log(
        folder / "four_none.h5", ranks=4, config={"throttle": "100mbit"}, link_bytes_per_s=12.5e6, **link,
        epochs=[none(21, 10, 2.1, 0.3), none(15, 4, 1.6, 0.4),
                none(17, 6, 1.1, 0.5)], rank_rows=ranks, buckets=[{
                    "epoch": e, "bucket": 0, "elements": 1_000_000, "sent_bytes": 240e6, "encode_s": 1, "wire_s": 4,
                    "decode_s": 1, "peer_wait_s": 2, "relative_error": 0, "delivered_relative_error": 0,
                    "residual_norm": 0, "saturation": 0
                } for e in range(3)])

    # A quarter of the bytes over a tenth of the rate: 15 MB a rank are 12 s at 10mbit, so 12.6 s at least, and
    # 20 / 12.6 = 1.59. busbw 480 Mbit / 15 s = 32 Mbit/s, 3.2 times the link; on the wire
    # 120 Mbit / (15 - 1) s = 8.57 Mbit/s, 85.7 %. Of 75 MB an epoch 60 are gradients, 80 %.
    # 40 / 20 = 2, 50 %; 32 / 20 = 1.6, 40 %; 20 - 40 / 4 = 10 s.
    def q8(loss: float, accuracy: float) -> dict[str, float]:
        return _epoch(20, compute_s=10, forward_s=3, backward_s=6, optimizer_s=1, exposed_comm_s=9, data_s=0.5,
                      other_s=0.5, comm_s=15, encode_s=1, decode_s=1, peer_wait_s=1, wire_s=12, sent_bytes=60e6,
                      received_bytes=60e6, sample_bytes=12e6, control_bytes=3e6, train_loss=loss,
                      test_loss=loss + 0.1, test_accuracy=accuracy,
                      learning_rate=0.1, codec_relative_error=0.01, delivered_relative_error=0.02, residual_norm=0.5)

    packed = write_log(
        folder / "four_q8.h5", ranks=4, config={"throttle": "10mbit", "compress": "q8"}, codec_names=["q8"],
        link_bytes_per_s=1.25e6, **link, epochs=[q8(2.1, 0.3), q8(1.6, 0.4), q8(1.1, 0.45)], rank_rows=[
            row | {
                "compute_s": 10, "exposed_comm_s": 9, "sent_bytes": 15e6, "received_bytes": 15e6, "comm_s": 15,
                "peer_wait_s": 1, "wire_s": 12
            } for row in ranks
        ], buckets=[{
            "epoch": e, "bucket": 0, "elements": 1_000_000, "sent_bytes": 60e6, "encode_s": 1, "wire_s": 12,
            "decode_s": 1, "peer_wait_s": 1, "relative_error": 0.01, "delivered_relative_error": 0.02,
            "residual_norm": 0.5, "saturation": 0.001, "residual_growth": 0.25, "residual_age": 1.5
        } for e in range(3)], tensor_names=["conv.weight", "fc.weight"], tensors=[{
            "epoch": e, "tensor": t, "elements": 500 * (t + 1), "longest_wait": wait
        } for e, t, wait in [(0, 0, 2), (1, 1, 5), (2, 1, 3)]])
    return [one, one_400, plain, packed]
