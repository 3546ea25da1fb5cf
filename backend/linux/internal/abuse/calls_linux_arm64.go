package main

import "errors"

var perArch []call

var errOther = errors.New("this architecture has no other entry that a program can take")

func int80([]string) error { return errOther }
func x32([]string) error   { return errOther }
