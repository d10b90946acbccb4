// Work in one transaction: committed when it ends well, rolled back when it throws.

export async function inTransaction(client, work) {
  await client.query('BEGIN')
  try {
    const result = await work()
    await client.query('COMMIT')
    return result
  } catch (error) {
    // On a lost connection there is nothing to roll back, and the first error is the one that matters.
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}
