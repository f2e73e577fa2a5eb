package documents

// Program is a program of a reader, such as "python train.py": it uses the GPU of its lease for a moment, with --epochs for a minute.
// Burn is the path of gpusim-burn.
func Program(burn string) string {
	return `#!/bin/sh
case " $* " in
*" --epochs "*) exec '` + burn + `' --memory 1GiB --kernel 5ms --queue 5 --seconds 60 >/dev/null ;;
*) exec '` + burn + `' --memory 64MiB --seconds 1 >/dev/null ;;
esac
`
}
