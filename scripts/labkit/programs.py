"""The programs that the lab can train: its own, and others that do the same work in another shape.

What is known of the first shaped the diagnoser. The others are kept aside: the same faults, other code, so that what comes out for
them is what others can expect. `scripts/lab --program NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "training"


@dataclass(frozen=True, slots=True)
class Program:
    """One training script with the options and files of training/job.py.

    functions: those that can be slow, of the training thread. reads: what reads samples; makes_batch: what a loader worker makes a
    batch with; logs: what takes the lock of the metrics. lacks: faults that need what this program has not.
    """

    script: str
    functions: tuple[str, ...]
    reads: str
    makes_batch: str
    logs: str
    lacks: frozenset[str] = frozenset()

    @property
    def path(self) -> Path:
        return FOLDER / self.script


PROGRAMS = {
    "job": Program(
        "job.py", ("tokenize", "augment", "build_mask", "collate", "log_metrics"), "load_batch", "collate", "log_metrics"
    ),
    "language": Program(
        "language.py", ("split_words", "tokens", "pack", "shift", "write"), "read_document", "pack", "write",
        lacks=frozenset({"heavy-stage"}),
    ),
    "trees": Program(
        "trees.py", ("bin_rows", "residuals", "histogram", "grow", "note"), "draw_rows", "bin_rows", "note",
        lacks=frozenset({"heavy-stage"}),
    ),
    "ranking": Program(
        "ranking.py", ("hash_ids", "draw_negatives", "label", "examples", "post"), "read_clicks", "hash_ids", "post",
        lacks=frozenset({"heavy-stage"}),
    ),
    "speech": Program(
        "speech.py", ("cut", "spectra", "mask_bands", "transcripts", "pad_batch", "add_loss"), "read_chunk", "pad_batch",
        "add_loss", lacks=frozenset({"heavy-stage"}),
    ),
    "graph": Program(
        "graph.py", ("node_features", "sample_neighbours", "drop_edges", "to_tensors", "remember"), "read_block",
        "sample_neighbours", "remember", lacks=frozenset({"heavy-stage"}),
    ),
    "diffusion": Program(
        "diffusion.py",
        ("unpack_differences", "restore", "pair_noise", "draw_levels", "add_noise", "record_loss"), "read_record",
        "add_noise", "record_loss", lacks=frozenset({"heavy-stage"}),
    ),
    "contrastive": Program(
        "contrastive.py",
        ("clean_captions", "word_pieces", "choose_crops", "jitter_colours", "stack_pairs", "keep_score"), "read_pairs",
        "stack_pairs", "keep_score", lacks=frozenset({"heavy-stage"}),
    ),
    "forecast": Program(
        "forecast.py", ("parse_lines", "fill_gaps", "take_out_profile", "add_calendar", "cut_windows", "track"),
        "read_log", "cut_windows", "track", lacks=frozenset({"heavy-stage"}),
    ),
    "detection": Program(
        "detection.py",
        ("decode_thumbnails", "compose_scenes", "mosaic", "flip", "letterbox", "match_anchors", "collate_detections",
         "update_meter"),
        "read_pack", "collate_detections", "update_meter", lacks=frozenset({"heavy-stage"}),
    ),
    "policy": Program(
        "aside/policy.py",
        ("cut_levels", "place_parcels", "measure_ways", "collect_rollout", "estimate_advantages", "flatten_rollout",
         "normalise_advantages", "note_return"),
        "read_levels", "flatten_rollout", "note_return", lacks=frozenset({"heavy-stage"}),
    ),
    "events": Program(
        "aside/events.py",
        ("split_lines", "mask_variables", "split_words", "merge_pairs", "pack_windows", "hide_tokens", "push_loss"),
        "read_journal", "hide_tokens", "push_loss", lacks=frozenset({"heavy-stage"}),
    ),
    "molecule": Program(
        "aside/molecule.py",
        ("pick_conformers", "decode_geometries", "rotate_at_random", "find_neighbours", "label_with_reference",
         "deal_conformers", "join_atoms", "append_errors"),
        "read_trajectory", "join_atoms", "append_errors", lacks=frozenset({"heavy-stage"}),
    ),
    "payments": Program(
        "aside/payments.py",
        ("decode_payments", "group_by_account", "count_velocity", "bin_amounts", "flag_chargebacks", "draw_histories",
         "pad_histories", "tally_caught"),
        "read_ledger", "pad_histories", "tally_caught", lacks=frozenset({"heavy-stage"}),
    ),
    "genome": Program(
        "aside/genome.py",
        ("spell_bases", "turn_strand", "mask_repeats", "pick_minimizers", "find_frames", "choose_section", "annotate",
         "number_kmers", "keep_loss"),
        "read_contig", "number_kmers", "keep_loss", lacks=frozenset({"heavy-stage"}),
    ),
    "landcover": Program(
        "aside/landcover.py",
        ("trace_fields", "fill_fields", "paint_bands", "balance_colours", "cut_tiles", "draw_clouds", "weigh_borders",
         "stack_tiles", "tally_pixels"),
        "read_scene", "stack_tiles", "tally_pixels", lacks=frozenset({"heavy-stage"}),
    ),
    "radar": Program(
        "aside/radar.py",
        ("unpack_sweeps", "remove_speckle", "correct_attenuation", "track_echoes", "project_beams", "to_rain_rate",
         "stack_frames", "store_scores"),
        "read_volume", "stack_frames", "store_scores", lacks=frozenset({"heavy-stage"}),
    ),
    "herbarium": Program(
        "aside/herbarium.py",
        ("develop_scan", "find_threshold", "label_pieces", "read_labels", "choose_plants", "cut_plants", "stain_paper",
         "mount_batch", "enter_loss"),
        "read_sheet", "mount_batch", "enter_loss", lacks=frozenset({"heavy-stage"}),
    ),
    "jets": Program(
        "aside/jets.py",
        ("unpack_deposits", "fill_towers", "suppress_noise", "grow_clusters", "find_jets", "match_partons",
         "measure_shapes", "smear_jets", "collate_jets", "update_progress"),
        "read_events", "collate_jets", "update_progress", lacks=frozenset({"heavy-stage"}),
    ),
    "counterpoint": Program(
        "aside/counterpoint.py",
        ("decode_keys", "pair_notes", "quantise", "find_tonics", "transpose", "name_chords", "write_tokens",
         "cut_excerpts", "orthogonalise", "jot_losses"),
        "read_take", "cut_excerpts", "jot_losses", lacks=frozenset({"heavy-stage"}),
    ),
}  # fmt: skip
