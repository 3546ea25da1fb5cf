package main

import (
	"os"
	"strings"

	"github.com/atoll-run/atoll/backend/linux/enter"
	"github.com/atoll-run/atoll/guest/inside"
	"github.com/atoll-run/atoll/guest/proto"
)

// setup carries out what backend/linux sends with "setup".
func setup(body []byte, files []*os.File) (inside.Place, []byte, error) {
	req, err := enter.Parse(body, len(files))
	if err != nil {
		return inside.Place{}, nil, err
	}
	done, err := enter.Setup(req, files)
	if err != nil {
		return inside.Place{}, nil, err
	}
	place := inside.Place{Env: environ(req.Env), Workdir: req.Workdir, User: req.User, OneID: req.OneID, PIDs: req.PIDs, MemoryWatch: req.Memory}
	if req.Spawn >= 0 {
		place.Cgroup = files[req.Spawn]
	}
	return place, proto.Append(nil, &done), nil
}

func environ(list []string) map[string]string {
	env := make(map[string]string, len(list))
	for _, kv := range list {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return env
}
