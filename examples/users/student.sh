#!/usr/bin/env bash
# A student: a paper's figure, the same with another epsilon, and a picture for the thesis.
#   examples/users/student.sh [DIR]      about ten seconds; DIR must not hold other results
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-student-out}
mkdir -p "$out"

# The figure as it is printed, in a first look: two replicates, a tenth of the rounds.
fastfed reproduce zc24-fig3a -o "$out/paper" --quick

# Its spec, to read and to change.
fastfed spec show zc24-fig3a > "$out/mine.toml"
sed -n '1,12p' "$out/mine.toml"

# The same with budgets of my own, and fewer silos.
fastfed run "$out/mine.toml" -o "$out/mine" --quick --set curve.epsilon=[0.5,2.0] --set silos=50

# What is the difference, and what does the noise really guarantee?
fastfed compare "$out/paper/zc24-fig3a" "$out/mine"
fastfed privacy "$out/mine.toml" --curve "LDP, epsilon = 1.0"

# My own picture and numbers.
python "$here/student.py" "$out/mine"
