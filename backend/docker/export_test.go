package docker

// CloseIdle closes the connections to the engine that nobody uses now.
func CloseIdle(rt *Runtime) { rt.api.Close() }
