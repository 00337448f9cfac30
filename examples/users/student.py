"""The student's own picture of a run, and the regret of its last round.

python student.py OUTPUT_FOLDER
"""

import sys

import fastfed

folder = sys.argv[1]
results = fastfed.load(folder)
axes = results.plot(metric="per_silo_regret", log="xy")
axes.set_title("My budgets")
axes.figure.savefig(f"{folder}/thesis.png", dpi=150)

frame = results.to_frame("summary")
print(frame[["label", "per_silo_regret_mean", "exact_epsilon", "privacy_status"]].to_string())
