#!/bin/bash
# opener.sh ALLOWED DENIED FILE [PAUSE] opens one node and the other, again and again, until FILE.stop exists. The
# messages of bash go to FILE, the number of rounds to FILE.rounds. It starts no process, and pauses (a fifth of a second)
# so that it does not use the only processor alone.
exec 9<> <(:)
exec 2>>"$3"
rounds=0
while [ ! -e "$3.stop" ]; do
	exec 3<>"$1"
	exec 4<>"$2"
	rounds=$((rounds + 1))
	echo $rounds >"$3.rounds"
	read -rt "${4:-0.2}" -u 9 _
done
exit 0
