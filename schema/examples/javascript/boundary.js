// Where a test stops a program: at the boundary between two steps. Without these variables it does nothing.
//
// KILL_AT=NAME   the process dies there, as by kill -9
// PAUSE_AT=NAME  it says so and waits there, until a signal comes

import { writeSync } from 'node:fs'
import process from 'node:process'

export async function boundary(name) {
  if (process.env.KILL_AT === name) {
    process.kill(process.pid, 'SIGKILL')
    await new Promise(() => {})
  }
  if (process.env.PAUSE_AT === name) {
    writeSync(1, `paused at ${name}\n`)
    await new Promise((resolve) => setTimeout(resolve, 600_000))
  }
}
