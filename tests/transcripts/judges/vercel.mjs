export async function judge(found) {
  const { safeValidateUIMessages } = await found("ai");
  return { validate: async (messages) => { const r = await safeValidateUIMessages({ messages }); return r.success ? [] : [String(r.error)]; } };
}
