// Vercel's AI SDK with both providers: @ai-sdk/openai uses the Responses API, @ai-sdk/openai-compatible uses chat.
//
// Node resolves packages from the folder of the script, so the runner copies this file into the client's environment.

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, isStepCount, Output, streamText, tool } from 'ai';
import { z } from 'zod';

const baseURL = process.env.OPENAI_BASE_URL;
const apiKey = process.env.OPENAI_API_KEY;
const model = process.env.CLIENT_MODEL;
const ERROR_CHARACTERS_MAX = 300;

const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({
  name: 'headgate', baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});

const tools = {
  weather: tool({
    description: 'Get the weather in a location',
    inputSchema: z.object({ location: z.string().describe('The location to get the weather for') }),
    execute: async ({ location }) => ({ location, temperature: 72 }),
  }),
};
const recipe = z.object({ name: z.string(), ingredients: z.array(z.object({ name: z.string(), amount: z.string() })) });
const question = { role: 'user', content: 'What is the weather in San Francisco?' };

function check(condition, message) {
  if (!condition) throw new Error(message);
}

function stepsOf(name, languageModel, embeddingModel) {
  return {
    [`${name}: text`]: async () => {
      const { text, usage } = await generateText({ model: languageModel, prompt: 'Why is the sky blue?' });
      check(text && usage.outputTokens > 0, 'no text or no usage');
    },
    [`${name}: streamed`]: async () => {
      const errors = [];
      const result = streamText({
        model: languageModel, prompt: 'Why is the sky blue?', onError: ({ error }) => errors.push(error),
      });
      let text = '';
      for await (const part of result.textStream) text += part;
      if (errors.length) throw errors[0];
      check(text, 'no text');
    },
    [`${name}: tool and second turn`]: async () => {
      const first = await generateText({ model: languageModel, tools, stopWhen: isStepCount(5), messages: [question] });
      check(first.steps.some(step => step.toolResults.length), 'no tool was called');
      check(first.text, 'no text after the tool');
      const messages = [question, ...first.response.messages, { role: 'user', content: 'And in Rome?' }];
      const second = await generateText({ model: languageModel, tools, stopWhen: isStepCount(5), messages });
      check(second.text, 'no text in the second turn');
    },
    [`${name}: streamed tool`]: async () => {
      const errors = [];
      const result = streamText({
        model: languageModel, tools, stopWhen: isStepCount(5), messages: [question],
        onError: ({ error }) => errors.push(error),
      });
      await result.consumeStream();
      if (errors.length) throw errors[0];
      check((await result.steps).some(step => step.toolResults.length), 'no tool was called');
      check(await result.text, 'no text after the tool');
    },
    [`${name}: object`]: async () => {
      const { output } = await generateText({
        model: languageModel, output: Output.object({ schema: recipe }), prompt: 'Generate a lasagna recipe.',
      });
      recipe.parse(output);
    },
    [`${name}: embeddings`]: async () => {
      const { embeddings } = await embedMany({ model: embeddingModel, values: ['sunny day', 'rainy night'] });
      check(embeddings.length === 2, 'not two embeddings');
    },
  };
}

const steps = {
  ...stepsOf('openai', openai(model), openai.embeddingModel(model)),
  ...stepsOf('compatible', compatible(model), compatible.embeddingModel(model)),
};

console.log(`STEPS ${JSON.stringify(Object.keys(steps))}`);
let failed = false;
for (const [step, play] of Object.entries(steps)) {
  let error = '';
  try {
    await play();
  } catch (raised) {
    console.error(raised);
    const cause = raised.lastError ?? raised;
    error = `${cause.name}: ${cause.message}`.slice(0, ERROR_CHARACTERS_MAX);
    failed = true;
  }
  console.log(`STEP ${JSON.stringify({ step, error })}`);
}
process.exit(failed ? 1 : 0);
