// Package native holds the shapes of Atoll's own HTTP API, which package
// api/native serves below /atoll/v1 and package client calls. It is data: the
// bodies of requests and answers, and the frames of a process's stream. The
// document api/native/openapi.yaml describes the same for everybody else.
//
// # Forms
//
// Bodies are JSON in UTF-8. A duration is a number of seconds ([Seconds]), a
// size is a whole number of bytes, a time is RFC 3339, permissions are octal
// digits in a string ([Mode]), and what is bytes, such as a file's name or an
// argument, is a string where it is UTF-8 and an object with the one member
// "base64" where it is not ([Text]). In a query a path is percent-encoded
// bytes, so nothing is lost there either. A member that is unknown, written
// twice or of the wrong type is refused by name.
//
// # Frames
//
// The stream of a process consists of frames:
//
//	1 byte   the type
//	4 bytes  the length of the payload, big endian
//	payload
//
// From the server:
//
//	1  started  JSON, [Started]; the first frame
//	2  stdout   bytes
//	3  stderr   bytes
//	4  exit     JSON, [sandbox.Exit]; the last frame
//	5  error    JSON, [Error]; the last frame, and the first if nothing was started
//	6  window   4 bytes, big endian: so many more bytes of stdin may be sent
//	7  control  bytes that the process wrote to its descriptor 3; only if the
//	            Exec asked for them
//
// To the server, over an upgraded connection only:
//
//	16  start      JSON, [Exec] without "stdin"; the first frame
//	17  stdin      bytes
//	18  stdin end  nothing
//	19  resize     JSON, [sandbox.Size]
//	20  signal     JSON, [Signal]
//
// Who sends stdin may have [Window] bytes of it under way, to which window
// frames add what the process has taken; more is an error that ends the
// stream. So the server never has to stop reading, and sees at once when the
// client hangs up. A client whose input is shorter than that need not care.
//
// No payload is longer than [MaxPayload], that of stdout, stderr, control and
// stdin not longer than [MaxChunk]. Over a WebSocket frames are sent in binary
// messages; the server sends one frame in each, and reads what it gets as one
// stream, however it is cut into messages.
package native
