# Completes some command lines in a zsh with a terminal of its own:  zsh -f complete.zsh FOLDER_OF_COMPLETIONS
zmodload zsh/zpty
out=''
wait_for() { # until the terminal has shown this text
  local chunk
  local -F end=$((SECONDS + 20))
  while [[ $out != *$1* ]]; do
    while zpty -r -t shell chunk; do out+=$chunk; done
    if ((SECONDS > end)); then
      print -r -- "complete.zsh: no '$1' after: ${out[-400,-1]}"
      exit 1
    fi
    sleep 0.02
  done
  out=''
}

zpty -b shell zsh -f -i
# The programs are functions that show their arguments.
zpty -w shell "fpath=($1 \$fpath); autoload -U compinit; compinit -u -D; for p in dptrain dpbench dplab dptrun; do eval \"\$p() { print -r -- 'ARG''UMENTS' \\\"\\\$@\\\"; }\"; done; echo rea''dy"
wait_for ready
complete_line() { # WORDS EXPECTED: the line is sent by a second return, when the rest of a word is there
  zpty -w -n shell "$1"$'\t'
  zpty -w -n shell $'\n'
  wait_for "ARGUMENTS $2"
}
complete_line 'dptrain --topolo' '--topology'
complete_line 'dptrain --compress none --overlap of' '--compress none --overlap off'
complete_line 'dpbench la' 'layers'
complete_line 'dpbench layers --image' 'layers --image-size'
complete_line 'dplab up --filter n' 'up --filter netem'
complete_line 'dptrun -np 2 -- dptrain --topolo' '-np 2 -- dptrain --topology'
zpty -d shell
